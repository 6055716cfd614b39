"""Calls that nobody ends: what is not at work any more has stopped."""

from __future__ import annotations

import asyncio
import threading

import pytest
from support.core import for_ever, in_loop, settle, witness

import hangup
from hangup.core.current import current_run
from hangup.core.opening import open_call
from hangup.errors import RunAbandoned
from hangup.testing import FakeClock


class _Reported:
    """A call as the layer that follows spans reports it."""

    def __init__(self) -> None:
        self.thread = threading.get_ident()


def never_ended() -> None:
    """Begin a spending call as one whose span nobody ends."""
    run = current_run()
    assert run is not None
    open_call(run, _Reported())


@in_loop
async def test_a_call_of_a_task_that_is_done_does_not_count_as_running() -> None:
    """Also where the task ended long before the run was abandoned."""

    async def step() -> None:
        never_ended()

    with witness() as seen, pytest.raises(RunAbandoned):
        async with hangup.run(name="r", clock=FakeClock()) as run:
            await asyncio.create_task(step())
            run.cancel("disconnect")
            run.check()
    assert seen.of("settled") == [("settled", "r", 0)]


@in_loop
async def test_one_of_a_task_that_ends_by_itself_is_not_reported_as_stuck() -> None:
    clock = FakeClock()
    proceed = asyncio.Event()
    tasks: list[asyncio.Task[None]] = []

    async def step() -> None:
        never_ended()
        await proceed.wait()

    async def scope() -> None:
        async with hangup.run(name="r", clock=clock) as run:
            # Somebody outside awaits it, so it is left alone.
            tasks.append(asyncio.create_task(step()))
            tasks.append(contextless(tasks[0]))
            await settle()
            run.cancel("disconnect")
            run.check()

    with witness() as seen:
        whole = asyncio.create_task(scope())
        await settle()
        assert seen.of("settled") == []
        proceed.set()
        await tasks[0]
        clock.advance(5.0)
        with pytest.raises(RunAbandoned):
            await whole
        assert seen.of("settled") == [("settled", "r", 0)]
        tasks[1].cancel()


def contextless(task: asyncio.Task[None]) -> asyncio.Task[None]:
    """A task of no run that waits for this one."""

    async def wait() -> None:
        await asyncio.shield(task)
        await for_ever()

    with hangup.detached():
        return asyncio.create_task(wait())


def test_a_blocking_run_whose_thread_left_a_call_open_has_settled() -> None:
    with witness() as seen, pytest.raises(RunAbandoned):  # noqa: SIM117  in order
        with hangup.run(name="r", clock=FakeClock()) as run:
            never_ended()
            run.cancel("disconnect")
            run.check()
    assert seen.of("settled") == [("settled", "r", 0)]
