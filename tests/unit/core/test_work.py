"""Stopping what is in flight: one cancel a task, never the running one, all undone."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest
from support.core import for_ever, in_loop, settle, spending, witness

import hangup
from hangup.core.cause import Cause
from hangup.core.scope import RunScope
from hangup.errors import DeadlineExceeded, RunAbandoned, RunCancelled, Stop
from hangup.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from hangup.core.run import Run


class Body:
    """A scope in a task of its own, and what came out of it."""

    def __init__(
        self,
        inside: Callable[[Run], Coroutine[Any, Any, object]],
        **settings: Any,
    ) -> None:
        self.clock = settings.setdefault("clock", FakeClock())
        self.cancelling = -1
        self.task = asyncio.create_task(self._work(inside, RunScope(**settings)))

    async def _work(
        self, inside: Callable[[Run], Coroutine[Any, Any, object]], scope: RunScope
    ) -> object:
        task = asyncio.current_task()
        assert task is not None
        try:
            async with scope as self.run:
                return await inside(self.run)
        finally:
            self.cancelling = task.cancelling()
            # A cancel of ours that leaked would come out of this.
            await asyncio.sleep(0)


async def wait(_run: Run) -> None:
    await for_ever()


@in_loop
async def test_what_waits_is_stopped_and_the_cancel_undone() -> None:
    body = Body(wait)
    await settle()
    body.run.cancel("disconnect", "left")
    with pytest.raises(RunCancelled, match="left"):
        await body.task
    assert body.cancelling == 0


@in_loop
async def test_what_waits_is_stopped_at_the_deadline() -> None:
    body = Body(wait, budget=10.0)
    await settle()
    body.clock.advance(9.75)
    await settle()
    assert not body.task.done()
    body.clock.advance(0.25)
    with pytest.raises(DeadlineExceeded) as error:
        await body.task
    assert error.value.elapsed == 10.0
    assert body.cancelling == 0


@in_loop
async def test_a_stop_from_another_thread_wakes_the_loop() -> None:
    body = Body(wait)
    await settle()
    thread = threading.Thread(target=body.run.cancel)
    thread.start()
    with pytest.raises(RunCancelled):
        await body.task
    thread.join(10.0)


@pytest.mark.parametrize("mode", ["observe", "refuse"])
def test_where_nothing_is_cut_everything_in_flight_goes_on(mode: str) -> None:
    @in_loop
    async def scenario() -> None:
        go = asyncio.Event()

        async def work(run: Run) -> str:
            with spending(run):
                await go.wait()
            return "answer"

        body = Body(work, mode=mode, budget=10.0)
        await settle()
        body.clock.advance(20.0)
        await settle()
        assert body.run.abandonment is None
        body.run.cancel("disconnect")
        body.clock.advance(20.0)
        await settle()
        assert body.run.cause is Cause.DISCONNECT
        assert not body.task.done()
        go.set()
        assert await body.task == "answer"

    scenario()


@in_loop
async def test_an_operators_kill_cuts_in_observe() -> None:
    body = Body(wait, mode="observe")
    await settle()
    body.run.cancel("killed")
    with pytest.raises(RunCancelled):
        await body.task


# Never the running task


@in_loop
async def test_a_run_cancelled_by_its_own_task_gets_the_signal_at_the_next_wait() -> (
    None
):
    reached: list[str] = []

    async def work(run: Run) -> None:
        run.cancel("killed")
        reached.append("went on")
        await for_ever()

    body = Body(work)
    with pytest.raises(RunCancelled):
        await body.task
    assert reached == ["went on"]
    assert body.cancelling == 0


@in_loop
async def test_a_run_cancelled_by_its_own_task_and_left_at_once_leaks_no_cancel() -> (
    None
):
    async def work(run: Run) -> str:
        run.cancel("killed")
        return "result"

    body = Body(work)
    assert await body.task == "result"
    assert body.cancelling == 0
    await settle()


@in_loop
async def test_a_sync_scope_left_at_once_leaks_no_cancel() -> None:
    with hangup.run() as run:
        run.cancel("killed")
    await settle()


@in_loop
async def test_the_signal_raised_here_is_not_followed_by_a_cancel() -> None:
    cleaned: list[str] = []

    async def work(run: Run) -> None:
        run.cancel("killed")
        try:
            run.check()
        finally:
            await asyncio.sleep(0)
            await settle()
            cleaned.append("up")

    body = Body(work)
    with pytest.raises(RunCancelled):
        await body.task
    assert cleaned == ["up"]
    assert body.cancelling == 0


# One cancel a task


@in_loop
async def test_b6_second_cancel_cuts_cleanup() -> None:
    """A disconnect and the deadline hit the same run; its clean-up is not cut."""
    flushed: list[str] = []
    flushing = asyncio.Event()

    async def work(run: Run) -> None:
        try:
            await for_ever()
        finally:
            await flushing.wait()
            flushed.append("usage")

    with witness() as seen:
        body = Body(work, budget=1.05, name="r")
        await settle()
        body.clock.advance(1.0)
        body.run.cancel("disconnect")
        await settle()
        body.clock.advance(0.05)
        body.run.cancel("killed")
        body.clock.advance(1.0)
        await settle()
        assert flushed == []
        flushing.set()
        with pytest.raises(RunCancelled) as error:
            await body.task
    assert flushed == ["usage"]
    assert error.value.cause == "disconnect"
    assert seen.of("abandoned") == [("abandoned", "r", "disconnect")]


@in_loop
async def test_b7_stubborn_task_spins_cpu() -> None:
    """A task that swallows its cancel gets no second one; its calls are refused."""
    cancels, turns, refused = 0, 0, 0
    release = asyncio.Event()

    async def stubborn(run: Run) -> None:
        nonlocal cancels, turns, refused
        while not release.is_set():
            turns += 1
            try:
                await release.wait()
            except asyncio.CancelledError:
                cancels += 1
        for _ in range(3):
            try:
                run.check()
            except BaseException:  # noqa: BLE001  the stubborn task of the case
                refused += 1

    with witness() as seen:
        body = Body(stubborn, name="r")
        await settle()
        body.run.cancel("killed")
        await settle()
        body.clock.advance(30.0)
        await settle()
        assert (cancels, turns) == (1, 2)
        assert seen.of("settled") == [("settled", "r", 1)]
        release.set()
        await body.task
    assert refused == 3
    assert len(seen.of("refused")) == 3
    assert seen.of("swallowed") == [("swallowed", "r")]


@in_loop
async def test_a_run_around_a_stopped_one_can_still_be_stopped() -> None:
    """One cancel a task and run: a child that timed out has not used up its parent's"""
    caught: list[str] = []

    async def work(run: Run) -> None:
        try:
            async with hangup.run(budget=1.0, name="child", clock=clock):
                await for_ever()
        except DeadlineExceeded:
            caught.append("child")
        await for_ever()

    clock = FakeClock()
    body = Body(work, clock=clock, name="parent")
    await settle()
    clock.advance(1.0)
    await settle()
    assert caught == ["child"]
    assert not body.task.done()
    body.run.cancel("disconnect")
    with pytest.raises(RunCancelled) as error:
        await body.task
    assert error.value.run_name == "parent"
    assert body.cancelling == 0


@in_loop
async def test_a_stop_from_above_waits_for_the_cleanup_of_a_stopped_child() -> None:
    flushing = asyncio.Event()
    flushed: list[str] = []

    async def work(run: Run) -> None:
        try:
            async with hangup.run(budget=1.0, name="child", clock=clock):
                try:
                    await for_ever()
                finally:
                    await flushing.wait()
                    flushed.append("usage")
        except DeadlineExceeded:
            await for_ever()

    clock = FakeClock()
    body = Body(work, clock=clock, name="parent")
    await settle()
    clock.advance(1.0)
    await settle()
    body.run.cancel("disconnect")
    await settle()
    assert flushed == []
    flushing.set()
    with pytest.raises(RunCancelled) as error:
        await body.task
    assert flushed == ["usage"]
    assert (error.value.run_name, error.value.cause) == ("parent", "disconnect")
    assert body.cancelling == 0


@in_loop
async def test_a_child_in_the_same_task_is_stopped_with_its_parent_by_one_cancel() -> (
    None
):
    woken = 0

    async def work(run: Run) -> None:
        nonlocal woken
        async with hangup.run(clock=clock), hangup.run(clock=clock):
            try:
                await for_ever()
            except asyncio.CancelledError:
                woken += 1
                await settle()
                raise

    clock = FakeClock()
    body = Body(work, clock=clock)
    await settle()
    body.run.cancel("killed")
    with pytest.raises(RunCancelled):
        await body.task
    assert woken == 1
    assert body.cancelling == 0


# Somebody else's cancels


@in_loop
async def test_a_cancel_from_outside_wins_over_the_stop() -> None:
    body = Body(wait)
    await settle()
    body.run.cancel("disconnect")
    body.task.cancel("theirs")
    with pytest.raises(asyncio.CancelledError):
        await body.task
    assert body.cancelling == 1
    assert body.run.cause is Cause.DISCONNECT


@in_loop
async def test_a_cancel_from_outside_during_the_unwinding_wins_too() -> None:
    body = Body(slow_to_stop)
    await settle()
    body.run.cancel("disconnect")
    await settle()
    body.task.cancel("theirs")
    with pytest.raises(asyncio.CancelledError, match="theirs"):
        await body.task
    assert body.cancelling == 1


async def slow_to_stop(_run: Run) -> None:
    try:
        await for_ever()
    finally:
        await for_ever()


@in_loop
async def test_a_timeout_around_the_scope_is_a_timeout() -> None:
    for stopped in (False, True):
        with pytest.raises(TimeoutError) as error:
            async with asyncio.timeout(None) as limit:
                async with hangup.run() as run:
                    loop = asyncio.get_running_loop()
                    if stopped:
                        loop.call_soon(run.cancel, "killed")
                    limit.reschedule(loop.time())
                    await for_ever()
        assert not isinstance(error.value, RunAbandoned)
        assert limit.expired()


@in_loop
async def test_a_timeout_inside_the_scope_is_its_own_affair() -> None:
    async with hangup.run() as run:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await for_ever()
        run.check()
    assert run.state == "delivered"


@in_loop
async def test_a_stop_inside_a_timeout_is_not_taken_for_one() -> None:
    async def work(run: Run) -> None:
        async with asyncio.timeout(3_600):
            await for_ever()

    body = Body(work)
    await settle()
    body.run.cancel("killed")
    with pytest.raises(RunCancelled):
        await body.task
    assert body.cancelling == 0


@in_loop
async def test_a_task_group_around_a_stopped_scope_goes_on() -> None:
    async with asyncio.TaskGroup() as group:
        other = group.create_task(settle())
        with pytest.raises(RunCancelled):
            async with hangup.run() as run:
                asyncio.get_running_loop().call_soon(run.cancel)
                await for_ever()
        await asyncio.sleep(0)
    assert not other.cancelled()


@in_loop
async def test_a_task_group_inside_is_stopped_whole() -> None:
    stopped: list[int] = []

    async def tool(number: int) -> None:
        try:
            await for_ever()
        finally:
            stopped.append(number)

    async def work(run: Run) -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(3):
                group.create_task(tool(number))

    body = Body(work)
    await settle()
    body.run.cancel("killed")
    with pytest.raises(RunCancelled):
        await body.task
    assert sorted(stopped) == [0, 1, 2]
    assert body.cancelling == 0


@in_loop
async def test_a_cancel_that_was_pending_before_is_not_taken_away() -> None:
    """Only what hangup cancelled is undone: the baseline is that of the entry."""
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.sleep(0)
    with pytest.raises(RunCancelled):
        async with hangup.run() as run:
            asyncio.get_running_loop().call_soon(run.cancel)
            await for_ever()
    assert task.cancelling() == 1
    task.uncancel()


@in_loop
async def test_what_was_not_cancelled_is_not_undone() -> None:
    """A task taken off a shared one was woken without a cancel of its own."""
    shared = asyncio.create_task(for_ever())
    healthy = asyncio.create_task(asyncio.wait({shared}))
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await settle()
    with pytest.raises(RunCancelled):
        async with hangup.run() as run:
            asyncio.get_running_loop().call_soon(run.cancel)
            await shared
    assert task.cancelling() == 1
    assert task.uncancel() == 0
    assert not shared.done()
    healthy.cancel()


@in_loop
async def test_a_failed_runs_own_task_is_left_to_tell_its_caller() -> None:
    go = asyncio.Event()

    async def work(run: Run) -> str:
        with spending(run):
            run.cancel("failed", "status 500")
            await go.wait()
        return "error page"

    body = Body(work)
    await settle()
    body.clock.advance(0.25)
    await settle()
    assert not body.task.done()
    go.set()
    assert await body.task == "error page"


# What others wait for


@pytest.mark.parametrize("how", ["directly", "shielded", "gathered", "hangup.gather"])
def test_shared_task_is_left_to_its_other_waiters(how: str) -> None:
    """A single-flight call that an abandoned run began and a healthy one waits for."""

    @in_loop
    async def scenario() -> None:
        done = asyncio.Event()
        inflight: list[asyncio.Task[str]] = []

        async def fetch() -> str:
            await done.wait()
            return "answer"

        async def share(run: Run) -> Any:
            if not inflight:
                inflight.append(asyncio.create_task(fetch()))
            shared = inflight[0]
            if how == "directly":
                return await shared
            if how == "shielded":
                return await asyncio.shield(shared)
            if how == "gathered":
                return (await asyncio.gather(shared, asyncio.sleep(0, "x")))[0]
            return (await hangup.gather(shared, asyncio.sleep(0, "x")))[0]

        abandoned, healthy = Body(share), Body(share)
        await settle()
        abandoned.run.cancel("disconnect")
        with pytest.raises(RunCancelled):
            await abandoned.task
        assert abandoned.cancelling == 0
        done.set()
        assert await healthy.task == "answer"
        assert healthy.run.state == "delivered"

    scenario()


@in_loop
async def test_a_shared_task_with_an_open_call_is_left_and_reported() -> None:
    release = asyncio.Event()

    async def fetch(run: Run) -> str:
        with spending(run):
            await release.wait()
        return "answer"

    async def begin(run: Run) -> None:
        shared.append(asyncio.create_task(fetch(run)))
        await shared[0]

    async def join(_run: Run) -> str:
        return await shared[0]

    shared: list[asyncio.Task[str]] = []
    with witness() as seen:
        clock = FakeClock()
        abandoned = Body(begin, name="left", clock=clock)
        await settle()
        healthy = Body(join)
        await settle()
        abandoned.run.cancel("disconnect")
        await settle()
        assert seen.of("settled") == []
        clock.advance(5.0)
        with pytest.raises(RunCancelled):
            await abandoned.task
        assert seen.of("settled") == [("settled", "left", 1)]
        release.set()
        assert await healthy.task == "answer"


@in_loop
async def test_a_shared_task_is_left_to_a_healthy_sibling_in_the_same_run() -> None:
    done = asyncio.Event()
    shared = asyncio.create_task(done.wait())
    clock = FakeClock()

    async def tool(budget: float | None) -> bool:
        async with hangup.run(budget=budget, clock=clock):
            return await shared

    async with hangup.run(clock=clock):
        hasty, patient = (asyncio.create_task(tool(budget)) for budget in (1.0, None))
        await settle()
        clock.advance(1.0)
        with pytest.raises(DeadlineExceeded):
            await hasty
        done.set()
        assert await patient


@in_loop
async def test_the_stop_comes_out_of_a_task_that_hands_it_on() -> None:
    """A stop raised in an awaited task travels to the scope as it is."""

    async def tool() -> None:
        hangup.check()

    async def work(run: Run) -> None:
        run.cancel("killed")
        with pytest.raises(Stop):
            await asyncio.create_task(tool())
        await asyncio.create_task(tool())

    body = Body(work)
    with pytest.raises(RunCancelled):
        await body.task
