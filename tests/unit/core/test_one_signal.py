"""A task in several runs gets one stop at a time, and each uncancels its own."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from support.core import for_ever, in_loop, settle, spending

import hangup
from hangup.errors import RunCancelled
from hangup.testing import FakeClock

if TYPE_CHECKING:
    from hangup.core.run import Run


@in_loop
async def test_a_stop_of_the_run_around_is_not_repeated_where_an_inner_one_ends() -> (
    None
):
    """The inner run was abandoned too, in a mode that cuts nothing: it had no stop."""
    runs: list[Run] = []
    cleaned: list[int] = []

    async def work() -> None:
        async with hangup.run(name="outer") as outer:
            try:
                async with hangup.run(name="inner", mode="refuse") as inner:
                    runs.extend([outer, inner])
                    await for_ever()
            finally:
                cleaned.append(task.cancelling())
                await asyncio.sleep(0.02)
                cleaned.append(task.cancelling())

    task = asyncio.create_task(work())
    await settle()
    outer, inner = runs
    assert inner.cancel("superseded")
    await settle()
    assert task.cancelling() == 0
    assert outer.cancel("killed")
    with pytest.raises(RunCancelled):
        await task
    assert cleaned == [1, 1]
    assert task.cancelling() == 0


@in_loop
async def test_what_was_started_in_a_cleanup_is_stopped_once_its_budget_is_spent() -> (
    None
):
    clock, begins = FakeClock(), asyncio.Event()

    async def background(run: Run) -> None:
        await begins.wait()
        with spending(run):
            await for_ever()

    async def work() -> None:
        async with hangup.run(clock=clock) as run:
            async with hangup.cleanup(budget=1.0):
                tasks.append(asyncio.create_task(background(run)))
            clock.advance(1.0)
            begins.set()
            await settle()
            run.cancel()
            await for_ever()

    tasks: list[asyncio.Task[None]] = []
    with pytest.raises(RunCancelled):
        await asyncio.create_task(work())
    assert tasks[0].cancelled()
