"""With eager tasks (Python 3.12 and later) the same holds as without."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Any

import pytest
from support.core import for_ever, in_loop, settle, spending

import hangup
from hangup.errors import RunCancelled
from hangup.testing import FakeClock

if TYPE_CHECKING:
    from hangup.core.run import Run

pytestmark = pytest.mark.skipif(
    sys.version_info < (3, 12), reason="asyncio has no eager tasks before 3.12"
)


def eagerly() -> None:
    if sys.version_info >= (3, 12):
        asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)


class Eager:
    """A coroutine that ends in an eager task, and what a leaked cancel would do."""

    def __init__(self) -> None:
        self.leaked = False
        self.cancelling = -1

    async def run(self, work: Any) -> Any:
        try:
            return await work
        finally:
            task = asyncio.current_task()
            assert task is not None
            self.cancelling = task.cancelling()
            try:
                await asyncio.sleep(0)
                await asyncio.sleep(0)
            except asyncio.CancelledError:
                self.leaked = True


@in_loop
async def test_a_run_cancelled_by_its_own_eager_task_leaks_no_cancel() -> None:
    eagerly()

    async def work() -> str:
        async with hangup.run() as run:
            run.cancel()
            return "result"

    eager = Eager()
    assert await asyncio.create_task(eager.run(work())) == "result"
    assert (eager.leaked, eager.cancelling) == (False, 0)


@in_loop
async def test_a_run_cancelled_by_its_own_eager_task_is_stopped_where_it_waits() -> (
    None
):
    eagerly()

    async def work() -> None:
        async with hangup.run() as run:
            run.cancel()
            await for_ever()

    eager = Eager()
    with pytest.raises(RunCancelled):
        await asyncio.create_task(eager.run(work()))
    assert (eager.leaked, eager.cancelling) == (False, 0)


@in_loop
async def test_a_tool_that_runs_inside_its_callers_step_may_cancel_the_run() -> None:
    """The caller's task is on the stack below: it too is not cancelled while it runs"""
    eagerly()
    steps: list[str] = []

    async def tool(run: Run) -> None:
        run.cancel()
        steps.append("cancelled")

    async def work() -> None:
        async with hangup.run() as run:
            task = asyncio.create_task(tool(run))
            steps.append("started")
            assert task.done()
            await for_ever()

    eager = Eager()
    with pytest.raises(RunCancelled):
        await asyncio.create_task(eager.run(work()))
    assert steps == ["cancelled", "started"]
    assert (eager.leaked, eager.cancelling) == (False, 0)


@in_loop
async def test_eager_leftovers_are_stopped_once() -> None:
    eagerly()
    cancels: list[str] = []

    async def background(run: Run) -> None:
        with spending(run):
            try:
                await for_ever()
            except asyncio.CancelledError:
                cancels.append("one")
                raise

    with pytest.raises(RunCancelled):
        async with hangup.run(clock=FakeClock()) as run:
            left = asyncio.create_task(background(run))
            run.cancel()
            run.check()
    assert left.cancelled()
    assert cancels == ["one"]


@in_loop
async def test_a_scope_left_in_an_eager_task_stops_the_task_below_later() -> None:
    """That one is on the stack, so it is never cancelled on the spot."""
    eagerly()
    steps: list[str] = []

    async def inner(run: Run) -> None:
        run.work.stop_leftovers()
        steps.append("asked to stop")

    async def background(run: Run) -> None:
        with spending(run):
            run.cancel()
            asyncio.create_task(inner(run))  # noqa: RUF006  done at once
            steps.append("went on")
            await for_ever()

    with pytest.raises(RunCancelled):
        async with hangup.run(clock=FakeClock()) as run:
            left = asyncio.create_task(background(run))
            await settle()
            await for_ever()
    assert left.cancelled()
    assert steps == ["asked to stop", "went on"]


@in_loop
async def test_gathered_eager_siblings_end_together() -> None:
    eagerly()
    cleaned: list[int] = []

    async def tool(number: int) -> int:
        try:
            await for_ever()
        finally:
            cleaned.append(number)
        return number

    async def fail() -> int:
        raise KeyError

    with pytest.raises(KeyError):
        await hangup.gather(tool(0), fail(), tool(1))
    assert cleaned == [0, 1]
    assert await hangup.gather(asyncio.sleep(0, 1), asyncio.sleep(0, 2)) == [1, 2]


@in_loop
async def test_an_irreversible_step_that_runs_eagerly_is_finished() -> None:
    eagerly()
    done: list[str] = []

    async def charge() -> str:
        done.append("charged")
        return "receipt"

    async with hangup.run():
        assert await hangup.irreversible(charge) == "receipt"
    assert done == ["charged"]
