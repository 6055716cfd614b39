"""A process that lives long: nothing of a run that is over, or lost, stays behind."""

from __future__ import annotations

import gc
import sys

import million
import pytest

from hangup.core import registry
from hangup.core.clock import SYSTEM_CLOCK
from hangup.otel import recorder
from hangup.otel.instrumentor import HangupInstrumentor

pytestmark = [pytest.mark.timeout(110), pytest.mark.wide]

RUNS = 12_000
MOST_OPEN = 300
SLACK = RUNS // 4
"""Blocks that there may be more of: a third of one for every run in the meantime."""


def test_memory_is_flat_however_runs_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Delivered, failed, left, never closed, with a call that never ends; half of them
    unsampled. The bound on open calls is lowered, so that it is soon reached; the
    command in ``tests/benchmarks/million.py`` does the same with the real one.
    """
    monkeypatch.setattr(recorder, "_MOST_OPEN", MOST_OPEN)
    part = RUNS // 4
    with million.working() as (worker, reader):
        found = []
        for number in range(4):
            worker.work(part, number * part)
            gc.collect()
            HangupInstrumentor().flush()  # what the collection has ended is entered
            reader.collect()
            gc.collect()
            found.append(sys.getallocatedblocks())
            # Half of the calls that never end are in runs that nobody closes.
            assert len(registry.live_runs()) <= MOST_OPEN
        assert max(found[1:]) - found[0] < SLACK, found
        million.settled()
        assert registry.live_runs() == ()
        assert million.tokens(reader, "hangup.tokens") == worker.spent
        assert million.tokens(reader, "hangup.metered.tokens") == worker.spent
    # The timers of what was lost went with it; what is left awaits its clearing out.
    assert len(SYSTEM_CLOCK._thread._heap) < RUNS // 4
