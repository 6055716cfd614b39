"""A million runs in one process: ``python tests/benchmarks/million.py [--runs N]``.

As a long-lived worker sees them: most are delivered, a share fails, is left by its
caller, is never closed, opens a span that nobody ends, or is not sampled. Prints the
resident memory as it stands after every tenth, garbage and all, the blocks that are
allocated once that is collected, and what is left at the end, which must be nothing.
Both must be flat from the first tenth on. Exits 1 where it is not so.
"""

from __future__ import annotations

import argparse
import contextlib
import contextvars
import gc
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import TraceIdRatioBased

import hangup
from hangup.core import registry
from hangup.otel.instrumentor import HangupInstrumentor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from opentelemetry.trace import Tracer

_GROWTH = 0.05
"""How much more memory there may be at any time after the first tenth: the garbage that
waits for the collector is more at one time than at another."""
_LEAKED = 0.01
"""How many more blocks there may be at any time after the first tenth."""
_BUDGET = 600.0  # none ends by its deadline, however slow the machine
_PATIENCE = 60.0  # seconds for the last ten thousand calls to be entered
_INPUT, _OUTPUT = 7, 3


class Worker:
    """What the runs of one process are made of.

    Attributes:
        spent: Tokens that were reported, in runs and out of them.
    """

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self.spent = 0
        self.ways: tuple[Callable[[], None], ...] = (
            *([self.delivered] * 4),
            self.failed,
            self.left,
            self.never_closed,
            self.span_never_ends,
            self.span_never_ends_nor_the_run,
            self.with_a_child,
        )

    def _call(self) -> Any:
        attributes = {
            "gen_ai.operation.name": "chat",
            "gen_ai.request.model": "gpt-4o",
        }
        return self._tracer.start_span("chat", attributes=attributes)

    def _spend(self) -> None:
        span = self._call()
        span.set_attribute("gen_ai.usage.input_tokens", _INPUT)
        span.set_attribute("gen_ai.usage.output_tokens", _OUTPUT)
        span.end()
        self.spent += _INPUT + _OUTPUT

    def delivered(self) -> None:
        with hangup.run(_BUDGET, name="delivered"):
            self._spend()

    def failed(self) -> None:
        with contextlib.suppress(LookupError), hangup.run(_BUDGET, name="failed"):
            self._spend()
            raise LookupError

    def left(self) -> None:
        with (
            contextlib.suppress(hangup.RunAbandoned),
            hangup.run(_BUDGET, name="left") as run,
        ):
            self._spend()
            run.cancel("disconnect")
            self._spend()  # refused

    def never_closed(self) -> None:
        hangup.run(_BUDGET, name="never closed").__enter__()
        self._spend()

    def span_never_ends(self) -> None:
        with hangup.run(_BUDGET, name="open call"):
            self._call()

    def span_never_ends_nor_the_run(self) -> None:
        hangup.run(_BUDGET, name="open run").__enter__()
        self._call()

    def with_a_child(self) -> None:
        with hangup.run(_BUDGET, name="parent"):
            self._spend()
            with hangup.run(_BUDGET, name="child"):
                self._spend()

    def work(self, runs: int, first: int = 0) -> None:
        """Make so many runs, each in a context of its own, as a task has."""
        for number in range(first, first + runs):
            contextvars.Context().run(self.ways[number % len(self.ways)])


def resident() -> int:
    """Return the bytes of memory that the process has."""
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


@contextlib.contextmanager
def working() -> Iterator[tuple[Worker, InMemoryMetricReader]]:
    """Install hangup; half of the traces are sampled."""
    tracers = TracerProvider(TraceIdRatioBased(0.5), shutdown_on_exit=False)
    reader = InMemoryMetricReader()
    meters = MeterProvider([reader], shutdown_on_exit=False)
    hangup.instrument(tracer_provider=tracers, meter_provider=meters)
    try:
        yield Worker(tracers.get_tracer("million")), reader
    finally:
        hangup.uninstrument()
        tracers.shutdown()
        meters.shutdown()


def tokens(reader: InMemoryMetricReader, name: str) -> int:
    """Return the sum of a metric over everything."""
    data: Any = reader.get_metrics_data()
    return sum(
        int(point.value)
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        if metric.name == name
        for point in metric.data.data_points
    )


def settled() -> None:
    """Give up on what never ends, as at the end of a process, and collect garbage."""
    HangupInstrumentor().give_up()
    until = time.monotonic() + _PATIENCE
    while True:
        gc.collect()
        HangupInstrumentor().flush()  # waits for a second at a time
        if not registry.live_runs() or time.monotonic() > until:
            return


def main() -> int:
    """Run it; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1_000_000)
    part = parser.parse_args().runs // 10
    found, blocks = [], []
    with working() as (worker, reader):
        for number in range(10):
            began = time.perf_counter()
            worker.work(part, number * part)
            found.append(resident())
            gc.collect()
            HangupInstrumentor().flush()  # what the collection has ended is entered
            reader.collect()
            blocks.append(sys.getallocatedblocks())
            print(
                f"{(number + 1) * part:>9,} runs: {found[-1] / 2**20:7.1f} MiB, "
                f"{blocks[-1]:,} blocks, "
                f"{part / (time.perf_counter() - began):,.0f} a second, "
                f"{len(registry.live_runs()):,} runs live",
                flush=True,
            )
        settled()
        left = len(registry.live_runs())
        booked = tokens(reader, "hangup.tokens")
    growth, leaked = (max(one[1:]) / one[0] - 1 for one in (found, blocks))
    print(f"after the first tenth: memory {growth:+.1%}, blocks {leaked:+.2%}")
    print(f"live runs at the end: {left}")
    print(f"tokens: {booked:,} in the books, {worker.spent:,} spent")
    flat = growth <= _GROWTH and leaked <= _LEAKED
    return 0 if flat and not left and booked == worker.spent else 1


if __name__ == "__main__":
    sys.exit(main())
