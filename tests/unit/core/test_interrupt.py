"""One cancel wakes the one task; what others wait for is left to them."""

from __future__ import annotations

import asyncio
import contextvars
import gc
from typing import TYPE_CHECKING, Any

import pytest
from support.core import in_loop, settle

from hangup.core.interrupt import awaited_outside, interrupt, retrieve

if TYPE_CHECKING:
    from collections.abc import Awaitable, Coroutine

OURS: contextvars.ContextVar[bool] = contextvars.ContextVar("ours", default=False)


def outsider(context: contextvars.Context) -> bool:
    return not context.get(OURS, False)


def start(coroutine: Coroutine[Any, Any, Any], *, ours: bool) -> asyncio.Task[Any]:
    context = contextvars.copy_context()
    context.run(OURS.set, ours)
    return asyncio.get_running_loop().create_task(coroutine, context=context)


async def wait_for(future: Awaitable[Any]) -> Any:
    return await future


class Job:
    """A task that works until told, and says how it ended."""

    def __init__(self, *, ours: bool) -> None:
        self.done = asyncio.Event()
        self.task = start(self._work(), ours=ours)

    async def _work(self) -> str:
        await self.done.wait()
        return "answer"


@in_loop
async def test_a_task_that_waits_is_woken_cancelled() -> None:
    task = start(asyncio.Event().wait(), ours=True)
    await settle()
    assert interrupt(task, outsider, "stop")
    assert task.cancelling() == 1
    with pytest.raises(asyncio.CancelledError, match="stop"):
        await task


@in_loop
async def test_a_task_that_has_not_begun_is_cancelled_too() -> None:
    task = start(asyncio.sleep(0), ours=True)
    assert interrupt(task, outsider, "stop")
    await settle()
    assert task.cancelled()


@in_loop
async def test_what_only_the_task_waits_for_is_cancelled_with_it() -> None:
    job = Job(ours=True)
    task = start(wait_for(job.task), ours=True)
    await settle()
    assert interrupt(task, outsider, "stop")
    await settle()
    assert task.cancelled()
    assert job.task.cancelled()


@pytest.mark.parametrize("how", ["directly", "shielded", "gathered", "inside gathered"])
def test_what_somebody_else_waits_for_too_is_left_to_them(how: str) -> None:
    @in_loop
    async def scenario() -> None:
        job, own = Job(ours=True), Job(ours=True)

        async def ours() -> Any:
            if how == "directly":
                return await job.task
            if how == "shielded":
                return await asyncio.shield(job.task)
            if how == "gathered":
                return await asyncio.gather(own.task, job.task)
            return await asyncio.gather(own.task, wait_for(job.task))

        task = start(ours(), ours=True)
        healthy = start(wait_for(job.task), ours=False)
        await settle()
        counted = interrupt(task, outsider, "stop")
        assert counted == (task.cancelling() == 1)
        await settle()
        assert task.cancelled()
        assert not job.task.done()
        assert own.task.cancelled() == ("gathered" in how)
        own.done.set()
        job.done.set()
        assert await healthy == "answer"

    scenario()


@in_loop
async def test_a_bare_future_that_another_task_waits_for_is_left_to_it() -> None:
    """The other common way to write a single-flight cache."""
    answer = asyncio.get_running_loop().create_future()
    task = start(wait_for(answer), ours=True)
    healthy = start(wait_for(answer), ours=False)
    await settle()
    assert not interrupt(task, outsider, "stop")
    await settle()
    assert task.cancelled()
    answer.set_result("answer")
    assert await healthy == "answer"


@in_loop
async def test_a_bare_future_that_nobody_else_waits_for_is_cancelled() -> None:
    """Its maker learns that nobody wants it any more, as with a plain cancel."""
    answer = asyncio.get_running_loop().create_future()
    heard: list[bool] = []
    answer.add_done_callback(lambda future: heard.append(future.cancelled()))
    task = start(wait_for(answer), ours=True)
    await settle()
    assert interrupt(task, outsider, "stop")
    await settle()
    assert heard == [True]


@in_loop
async def test_a_task_that_waits_outside_is_taken_off_first() -> None:
    """A task may stand outside for a while, in a detached block say: no uncancel."""
    answer = asyncio.get_running_loop().create_future()
    task = start(wait_for(answer), ours=False)
    await settle()
    assert not interrupt(task, outsider, "stop")
    await settle()
    assert task.cancelled()
    assert answer.cancelled()


@in_loop
async def test_a_shared_task_is_left_alone_behind_a_chain_of_ours() -> None:
    job = Job(ours=True)
    inner = start(wait_for(job.task), ours=True)
    task = start(wait_for(wait_for(inner)), ours=True)
    healthy = start(wait_for(job.task), ours=False)
    await settle()
    interrupt(task, outsider, "stop")
    await settle()
    assert task.cancelled()
    assert inner.cancelled()
    job.done.set()
    assert await healthy == "answer"


@in_loop
async def test_a_task_taken_off_a_shared_one_can_go_on_and_be_cancelled_again() -> None:
    job, other = Job(ours=True), Job(ours=True)

    async def ours() -> str:
        try:
            await job.task
        except asyncio.CancelledError:
            await other.task
        return "through"

    task = start(ours(), ours=True)
    healthy = start(wait_for(job.task), ours=False)
    await settle()
    assert not interrupt(task, outsider, "stop")
    assert task.cancelling() == 0
    await settle()
    assert not task.done()
    other.done.set()
    assert await task == "through"
    job.done.set()
    assert await healthy == "answer"


@in_loop
async def test_the_fault_of_a_shared_task_is_still_told_to_its_other_waiters() -> None:
    release = asyncio.Event()

    async def fail() -> None:
        await release.wait()
        raise ArithmeticError

    shared = start(fail(), ours=True)
    task = start(wait_for(shared), ours=True)
    healthy = start(wait_for(shared), ours=False)
    await settle()
    interrupt(task, outsider, "stop")
    await settle()
    release.set()
    with pytest.raises(ArithmeticError):
        await healthy
    assert task.cancelled()


@in_loop
async def test_waiting_is_told_by_the_context_of_who_waits() -> None:
    job = Job(ours=True)
    assert not awaited_outside(job.task, outsider)
    ours = start(wait_for(job.task), ours=True)
    await settle()
    assert not awaited_outside(job.task, outsider)
    theirs = start(wait_for(asyncio.shield(job.task)), ours=False)
    await settle()
    assert awaited_outside(job.task, outsider)
    job.done.set()
    await asyncio.gather(ours, theirs)
    assert not awaited_outside(job.task, outsider)


@in_loop
async def test_the_exception_of_a_task_we_stopped_is_not_logged() -> None:
    """The loop of these tests would report one that was never retrieved."""

    async def fail() -> None:
        raise ArithmeticError

    for coroutine in (fail(), asyncio.sleep(0)):
        task = start(coroutine, ours=True)
        task.add_done_callback(retrieve)
        await settle()
        assert task.done()
        del task
        gc.collect()
