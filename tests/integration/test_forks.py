"""A process that forks counts once what was spent once."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.core import in_loop
from support.forking import CHILD, PARENT
from support.otlp import Receiver

from hangup.otel import names

pytestmark = pytest.mark.timeout(60)
TESTS = Path(__file__).parents[1]


async def forked(temporality: str, *words: str) -> Receiver:
    """Let the process run to its end; returns what it and its children exported."""
    with Receiver() as receiver:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "support.forking", *words),
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path]),
                "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": receiver.http,
                "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE": temporality,
            },
            stderr=subprocess.PIPE,
        )
        _, said = await process.communicate()
    assert process.returncode == 0, said.decode()
    assert b"Traceback" not in said, said.decode()
    return receiver


def test_a_forked_child_begins_at_zero_and_loses_nothing() -> None:
    """However it ends, and also where it was forked in the middle of a run."""

    @in_loop
    async def check() -> None:
        for receiver in await asyncio.gather(
            forked("cumulative"), forked("delta"), forked("cumulative", "late")
        ):
            right(receiver)

    check()


def right(receiver: Receiver) -> None:
    spent = 4 * PARENT + 6 * CHILD
    assert receiver.total(names.METERED_TOKENS, type="input") == spent
    # One call was in no run.
    assert receiver.total(names.TOKENS, type="input") == spent - CHILD
    assert receiver.total(names.TOKENS, type="output") == 9
    # The one that ended in the middle of its parent's run knows no more of it.
    exited = receiver.total(names.TOKENS, type="input", fate="sunk")
    assert exited == 2 * CHILD
    delivered = receiver.total(names.TOKENS, type="input", fate="delivered")
    assert delivered == spent - 3 * CHILD
    calls = {
        run: receiver.total(names.RUNS, outcome="delivered", name=run)
        for run in ("parent", "around", "child")
    }
    # The two that were forked in a run opened children of it, which are no runs of
    # their own.
    assert calls == {"parent": 2, "around": 1, "child": 2}
    assert receiver.total(names.RUNS) == 5
    # The parent, and four children.
    assert len(receiver.instances(names.TOKENS)) == 5
    seeded = receiver.points(names.RUNS, cause="killed", name="parent")
    assert {one.instance for one in seeded} == receiver.instances(names.TOKENS)
