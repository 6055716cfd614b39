"""Teardown has a clock of its own, behind a shield; detached work leaves the run."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING

import pytest
from support.core import for_ever, in_loop, settle, spending

import hangup
from hangup.core.cleanup import CleanupScope
from hangup.errors import (
    ConfigError,
    DeadlineExceeded,
    MisuseError,
    RunCancelled,
    Stop,
)
from hangup.testing import FakeClock

if TYPE_CHECKING:
    from hangup.core.run import Run


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def test_inside_the_time_left_is_the_blocks_own(clock: FakeClock) -> None:
    with hangup.run(budget=10.0, clock=clock) as run:
        clock.advance(12.0)
        with hangup.cleanup(budget=3.0):
            assert hangup.remaining() == run.remaining() == 3.0
            clock.advance(1.0)
            assert hangup.remaining() == 2.0
        assert hangup.remaining() == -3.0


def test_inside_nothing_is_refused_until_its_time_is_up(clock: FakeClock) -> None:
    with pytest.raises(DeadlineExceeded), hangup.run(budget=1.0, clock=clock) as run:
        clock.advance(5.0)
        with hangup.cleanup(budget=3.0):
            hangup.check()
            run.check(needs=60.0)
            clock.advance(3.0)
            with pytest.raises(Stop):
                hangup.check()
        hangup.check()


def test_what_is_started_inside_is_shielded_until_the_blocks_time_is_up(
    clock: FakeClock,
) -> None:
    @in_loop
    async def scenario() -> None:
        go, again = asyncio.Event(), asyncio.Event()

        async def flush() -> None:
            await go.wait()
            hangup.check()
            await again.wait()
            hangup.check()

        async with hangup.run(mode="refuse", clock=clock) as run:
            run.cancel("disconnect")
            async with hangup.cleanup(budget=3.0):
                task = asyncio.create_task(flush())
            go.set()
            await settle()
            assert not task.done()
            clock.advance(3.0)
            again.set()
            with pytest.raises(hangup.RunCancelled):
                await task

    scenario()


def test_it_works_outside_a_run_too(clock: FakeClock) -> None:
    with hangup.cleanup(budget=3.0, clock=clock):
        clock.advance(1.0)
        assert hangup.remaining() == 2.0
        assert hangup.current_run() is None
    assert hangup.remaining() == math.inf


def test_in_a_child_it_shields_from_the_whole_tree(clock: FakeClock) -> None:
    with (
        pytest.raises(RunCancelled),
        hangup.run(clock=clock) as parent,
        hangup.run(clock=clock),
    ):
        parent.cancel("killed")
        with hangup.cleanup():
            hangup.check()
        hangup.check()


# What it holds back


class Stopped:
    """A run that cleans up while it is being stopped."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.reached: list[str] = []
        self.flushed = asyncio.Event()
        self.task = asyncio.create_task(self._work())

    async def _work(self) -> None:
        async with hangup.run(budget=60.0, clock=self.clock) as self.run:
            async with hangup.cleanup(budget=5.0):
                await self.flushed.wait()
                self.reached.append("flushed")
            self.reached.append("left the block")
            await for_ever()


@in_loop
async def test_a_stop_waits_until_the_block_ends_and_comes_then() -> None:
    stopped = Stopped(FakeClock())
    await settle()
    stopped.run.cancel("disconnect")
    await settle()
    assert not stopped.task.done()
    stopped.flushed.set()
    with pytest.raises(RunCancelled):
        await stopped.task
    assert stopped.reached == ["flushed", "left the block"]


@in_loop
async def test_a_cancel_of_somebody_else_is_not_held_back() -> None:
    stopped = Stopped(FakeClock())
    await settle()
    stopped.task.cancel("theirs")
    with pytest.raises(asyncio.CancelledError, match="theirs"):
        await stopped.task
    assert stopped.reached == []


@in_loop
async def test_a_nested_block_holds_it_back_to_the_end_of_the_outer_one() -> None:
    async def work() -> None:
        async with hangup.run() as run:
            runs.append(run)
            async with hangup.cleanup():
                async with hangup.cleanup():
                    await inner.wait()
                reached.append("outer")
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                reached.append("end")
            await for_ever()

    runs: list[Run] = []
    reached: list[str] = []
    inner = asyncio.Event()
    task = asyncio.create_task(work())
    await settle()
    runs[0].cancel("disconnect")
    inner.set()
    with pytest.raises(RunCancelled):
        await task
    assert reached == ["outer", "end"]


@in_loop
async def test_cleaning_up_after_the_stop_is_not_stopped_again() -> None:
    flushed: list[str] = []

    async def work() -> None:
        async with hangup.run(budget=1.0, clock=clock) as run:
            runs.append(run)
            try:
                await for_ever()
            finally:
                async with hangup.cleanup():
                    await flushing.wait()
                    run.check()
                    flushed.append("usage")

    runs: list[Run] = []
    clock = FakeClock()
    flushing = asyncio.Event()
    task = asyncio.create_task(work())
    await settle()
    clock.advance(1.0)
    await settle()
    runs[0].cancel("disconnect")
    clock.advance(2.0)
    await settle()
    flushing.set()
    with pytest.raises(DeadlineExceeded):
        await task
    assert flushed == ["usage"]


@in_loop
async def test_the_cleanup_of_a_leftover_is_not_cut_and_the_stop_comes_after() -> None:
    clock = FakeClock()
    flushed = asyncio.Event()
    reached: list[str] = []

    async def background(run: Run) -> None:
        with spending(run):
            async with hangup.cleanup(budget=60.0):
                await flushed.wait()
                reached.append("flushed")
            await for_ever()

    async def work() -> None:
        async with hangup.run(clock=clock) as run:
            tasks.append(asyncio.create_task(background(run)))
            await asyncio.sleep(0)
            run.cancel("disconnect")
            run.check()

    tasks: list[asyncio.Task[None]] = []
    task = asyncio.create_task(work())
    await settle()
    clock.advance(0.25)
    await settle()
    assert not tasks[0].done()
    assert not task.done()
    flushed.set()
    with pytest.raises(RunCancelled):
        await task
    assert reached == ["flushed"]
    assert tasks[0].cancelled()


@in_loop
async def test_the_cleanup_of_a_gathered_sibling_is_not_cut() -> None:
    flushed = asyncio.Event()
    reached: list[str] = []

    async def tool() -> None:
        async with hangup.cleanup():
            await flushed.wait()
            reached.append("flushed")
        await for_ever()
        reached.append("went on")

    async def work() -> None:
        async with hangup.run(clock=FakeClock()) as run:
            runs.append(run)
            await hangup.gather(tool(), for_ever())

    runs: list[Run] = []
    task = asyncio.create_task(work())
    await settle()
    runs[0].cancel("disconnect")
    await settle()
    assert not task.done()
    flushed.set()
    with pytest.raises(RunCancelled):
        await task
    assert reached == ["flushed"]


# When it takes too long


@in_loop
async def test_a_block_that_takes_too_long_is_interrupted_and_says_so() -> None:
    clock = FakeClock()

    async def work() -> None:
        async with hangup.run(name="r", clock=clock), hangup.cleanup(budget=2.0):
            await for_ever()

    task = asyncio.create_task(work())
    await settle()
    clock.advance(1.75)
    await settle()
    assert not task.done()
    clock.advance(0.25)
    with pytest.raises(TimeoutError) as error:
        await task
    said = str(error.value)
    assert said.startswith("cleanup of <Run 'r'")
    assert "took longer than its 2 s" in said
    assert "hangup.cleanup(budget=...)" in said


@in_loop
async def test_its_cancel_is_undone() -> None:
    clock = FakeClock()
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().call_soon(clock.advance, 2.0)
    with pytest.raises(TimeoutError, match="cleanup took longer than its 2 s"):
        async with hangup.cleanup(budget=2.0, clock=clock):
            await for_ever()
    assert task.cancelling() == 0
    await settle()


@in_loop
async def test_a_cancel_from_outside_wins_over_its_timeout() -> None:
    clock = FakeClock()

    async def work() -> None:
        async with hangup.cleanup(budget=2.0, clock=clock):
            await for_ever()

    task = asyncio.create_task(work())
    await settle()
    task.cancel("theirs")
    clock.advance(2.0)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelling() == 1


@in_loop
async def test_the_cleanup_of_a_stopped_run_may_take_too_long_as_well() -> None:
    """The cancel that came before the block is not taken for one from outside."""
    clock = FakeClock()
    caught: list[BaseException] = []

    async def work() -> None:
        async with hangup.run(budget=1.0, clock=clock):
            try:
                await for_ever()
            finally:
                try:
                    async with hangup.cleanup(budget=2.0):
                        await for_ever()
                except BaseException as error:  # noqa: BLE001  to look at it
                    caught.append(error)

    task = asyncio.create_task(work())
    await settle()
    clock.advance(1.0)
    await settle()
    clock.advance(2.0)
    with pytest.raises(DeadlineExceeded):
        await task
    assert [type(error) for error in caught] == [TimeoutError]


@in_loop
async def test_a_block_that_ends_in_time_leaves_no_timer() -> None:
    clock = FakeClock()
    async with hangup.cleanup(budget=2.0, clock=clock):
        assert clock.pending == 1
    assert clock.pending == 0


@in_loop
async def test_an_error_of_the_block_passes_unchanged() -> None:
    mine = KeyError("mine")
    with pytest.raises(KeyError) as error:
        async with hangup.cleanup():
            raise mine
    assert error.value is mine


@pytest.mark.parametrize("budget", [-1.0, math.nan])
def test_a_wrong_budget_is_refused_where_it_is_given(budget: float) -> None:
    with pytest.raises(ConfigError, match=f"budget={budget!r} cannot be used"):
        hangup.cleanup(budget=budget)


def test_a_block_entered_twice_says_what_to_do() -> None:
    block = CleanupScope()
    with block, pytest.raises(MisuseError, match="call it again for each block"), block:
        pass
    with pytest.raises(MisuseError, match="entered twice"), block:
        pass


# Detached


@in_loop
async def test_what_is_started_detached_outlives_the_run_on_purpose() -> None:
    go = asyncio.Event()

    async def background() -> str:
        assert hangup.current_run() is None
        await go.wait()
        hangup.check()
        return "done"

    with pytest.raises(RunCancelled):
        async with hangup.run() as run:
            run.cancel("disconnect")
            with hangup.detached():
                hangup.check()
                task = asyncio.create_task(background())
            hangup.check()
    go.set()
    assert await task == "done"


def test_a_run_opened_detached_is_nobodys_child() -> None:
    with hangup.run() as run:
        with hangup.detached(), hangup.run() as other:
            assert other.parent is None
            assert other.id != run.id
        assert hangup.current_run() is run


def test_detached_can_be_entered_again_and_again() -> None:
    away = hangup.detached()
    with hangup.run() as run:
        for _ in range(2):
            with away:
                assert hangup.current_run() is None
                with hangup.run() as inner:
                    with away:
                        assert hangup.current_run() is None
                    assert hangup.current_run() is inner
            assert hangup.current_run() is run
