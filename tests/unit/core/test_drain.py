"""What is under way is let finish for a while; what is new is refused all the same."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from typing import TYPE_CHECKING

import pytest
from support.core import for_ever, in_loop, settle, spending, witness

import hangup
from hangup.core.admission import stop_here
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


class Drained:
    """A run that reads an answer in a drain block, on a task of its own."""

    def __init__(self, clock: FakeClock, *, mode: str = "enforce") -> None:
        self.clock = clock
        self.mode = mode
        self.reached: list[str] = []
        self.answered = asyncio.Event()
        self.task = asyncio.create_task(self._work())

    async def _work(self) -> None:
        async with hangup.run(budget=60.0, mode=self.mode, clock=self.clock) as run:
            self.run = run
            async with hangup.drain(budget=10.0):
                with spending(run):
                    await self.answered.wait()
                self.reached.append("answered")
            self.reached.append("left the block")
            await for_ever()


@in_loop
async def test_the_stop_waits_until_the_block_ends_and_comes_then() -> None:
    drained = Drained(FakeClock())
    await settle()
    drained.run.cancel("disconnect")
    await settle()
    drained.clock.advance(9.9)
    await settle()
    assert not drained.task.done()
    drained.answered.set()
    with pytest.raises(RunCancelled):
        await drained.task
    assert drained.reached == ["answered", "left the block"]


@in_loop
async def test_beyond_its_budget_it_is_cut() -> None:
    drained = Drained(FakeClock())
    await settle()
    drained.clock.advance(30.0)  # counts from the abandonment, not from here
    drained.run.cancel("disconnect")
    await settle()
    drained.clock.advance(9.9)
    await settle()
    assert not drained.task.done()
    drained.clock.advance(0.1)
    with pytest.raises(RunCancelled):
        await drained.task
    assert drained.reached == []


@in_loop
async def test_a_deadline_is_held_back_as_any_other_cause() -> None:
    drained = Drained(FakeClock())
    await settle()
    drained.clock.advance(60.0)
    await settle()
    assert not drained.task.done()
    drained.answered.set()
    with pytest.raises(DeadlineExceeded):
        await drained.task
    assert drained.reached == ["answered", "left the block"]


def test_a_new_call_inside_is_refused(clock: FakeClock) -> None:
    with pytest.raises(RunCancelled), hangup.run(clock=clock) as run:
        with hangup.drain():
            hangup.check()
            run.cancel("disconnect")
            with pytest.raises(Stop):
                hangup.check()
        hangup.check()


def test_what_is_under_way_goes_on_for_its_budget(clock: FakeClock) -> None:
    """A thread that reads is asked at every chunk: it cannot be held back."""
    with hangup.run(clock=clock) as run, hangup.drain(budget=10.0):
        assert stop_here(run, under_way=True) is None
        run.cancel("disconnect")
        assert stop_here(run, under_way=True) is None
        assert isinstance(stop_here(run), Stop)
        clock.advance(9.9)
        assert stop_here(run, under_way=True) is None
        clock.advance(0.1)
        assert isinstance(stop_here(run, under_way=True), Stop)


def test_outside_the_block_it_does_not_go_on(clock: FakeClock) -> None:
    with hangup.run(clock=clock) as run:
        with hangup.drain(budget=10.0):
            run.cancel("disconnect")
        assert isinstance(stop_here(run, under_way=True), Stop)


def test_the_time_left_is_the_runs_own(clock: FakeClock) -> None:
    """It is what new work has to go by; only what is under way has more."""
    with hangup.run(budget=10.0, clock=clock) as run, hangup.drain(budget=30.0):
        assert hangup.remaining() == run.remaining() == 10.0
        clock.advance(12.0)
        assert hangup.remaining() == -2.0


@in_loop
async def test_a_run_that_lives_notices_nothing() -> None:
    clock = FakeClock()
    with witness() as seen:
        async with hangup.run(clock=clock) as run:
            async with hangup.drain(budget=0.0):
                clock.advance(100.0)
                hangup.check()
                assert hangup.current_run() is run
            assert clock.pending == 0
    assert seen.of("abandoned", "refused", "settled") == []


@in_loop
async def test_outside_a_run_it_does_nothing() -> None:
    async with hangup.drain():
        assert hangup.current_run() is None
        hangup.check()


@in_loop
async def test_a_cancel_of_somebody_else_is_not_held_back() -> None:
    drained = Drained(FakeClock())
    await settle()
    drained.run.cancel("disconnect")
    drained.task.cancel("theirs")
    with pytest.raises(asyncio.CancelledError, match="theirs"):
        await drained.task
    assert drained.reached == []


@in_loop
async def test_where_nothing_is_stopped_there_is_nothing_to_hold_back() -> None:
    drained = Drained(FakeClock(), mode="observe")
    await settle()
    drained.run.cancel("disconnect")
    drained.clock.advance(60.0)
    drained.answered.set()
    await settle()
    assert drained.reached == ["answered", "left the block"]
    drained.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await drained.task


# One inside another


async def _nested(outer: object, inner: object, done: asyncio.Event) -> list[str]:
    """Return how far it came."""
    reached: list[str] = []
    try:
        async with outer:  # type: ignore[attr-defined]
            async with inner:  # type: ignore[attr-defined]
                await done.wait()
                reached.append("inner")
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            reached.append("outer")
        await for_ever()
    except asyncio.CancelledError:
        reached.append("stopped")
        raise
    finally:
        _REACHED.append(reached)
    return reached


_REACHED: list[list[str]] = []


@pytest.mark.parametrize("around", [hangup.cleanup, hangup.drain])
@pytest.mark.parametrize("inside", [hangup.cleanup, hangup.drain])
def test_nested_it_is_held_back_to_the_end_of_the_outer_one(
    around: type[hangup.drain], inside: type[hangup.drain]
) -> None:
    @in_loop
    async def scenario() -> None:
        clock = FakeClock()
        done = asyncio.Event()
        runs: list[Run] = []

        async def work() -> None:
            async with hangup.run(clock=clock) as run:
                runs.append(run)
                await _nested(around(budget=5.0), inside(budget=5.0), done)

        task = asyncio.create_task(work())
        await settle()
        runs[0].cancel("disconnect")
        await settle()
        done.set()
        with pytest.raises(RunCancelled):
            await task
        assert _REACHED.pop() == ["inner", "outer", "stopped"]

    scenario()


def test_inside_a_cleanup_it_lets_new_calls_through_as_that_does() -> None:
    with hangup.run() as run, hangup.cleanup(), hangup.drain():
        run.cancel("disconnect")
        hangup.check()


def test_an_inner_block_with_less_time_does_not_shorten_the_outer_one(
    clock: FakeClock,
) -> None:
    with (
        hangup.run(clock=clock) as run,
        hangup.drain(budget=10.0),
        hangup.drain(budget=1.0),
    ):
        run.cancel("disconnect")
        clock.advance(9.0)
        assert stop_here(run, under_way=True) is None
        clock.advance(1.0)
        assert isinstance(stop_here(run, under_way=True), Stop)


@in_loop
async def test_an_irreversible_step_inside_is_finished_beyond_the_budget() -> None:
    clock = FakeClock()
    runs: list[Run] = []
    charged: list[str] = []
    banked = asyncio.Event()

    async def charge() -> None:
        await banked.wait()
        charged.append("card")

    async def work() -> None:
        async with hangup.run(clock=clock) as run:
            runs.append(run)
            async with hangup.drain(budget=1.0):
                await hangup.irreversible(charge)
            await for_ever()

    task = asyncio.create_task(work())
    await settle()
    runs[0].cancel("disconnect")
    clock.advance(5.0)
    await settle()
    assert not task.done()
    banked.set()
    await settle()
    assert charged == ["card"]
    with pytest.raises(RunCancelled):
        await task


@in_loop
async def test_a_child_run_inside_still_ends_by_its_own_deadline() -> None:
    clock = FakeClock()
    async with hangup.run(clock=clock), hangup.drain(budget=60.0):
        child: asyncio.Task[None] = asyncio.create_task(_child(clock))
        await settle()
        clock.advance(1.0)
        with pytest.raises(DeadlineExceeded):
            await child


async def _child(clock: FakeClock) -> None:
    async with hangup.run(budget=1.0, clock=clock):
        await for_ever()


@in_loop
async def test_a_child_run_around_it_is_drained_when_the_parent_is_stopped() -> None:
    clock = FakeClock()
    reached: list[str] = []
    runs: list[Run] = []
    answered = asyncio.Event()

    async def work() -> None:
        async with hangup.run(clock=clock) as parent:
            runs.append(parent)
            async with hangup.run(clock=clock), hangup.drain(budget=1.0):
                await answered.wait()
                reached.append("answered")
            await for_ever()

    task = asyncio.create_task(work())
    await settle()
    runs[0].cancel("killed")
    await settle()
    answered.set()
    with pytest.raises(RunCancelled):
        await task
    assert reached == ["answered"]


# Work started inside


class Siblings:
    """Two tasks of a gather inside a block, each with a call open."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.answered = asyncio.Event()
        self.reached: list[int] = []
        self.task = asyncio.create_task(self._work())

    async def _work(self) -> None:
        async with hangup.run(clock=self.clock) as self.run:
            async with hangup.drain(budget=10.0):
                await hangup.gather(self._read(1), self._read(2))
            await for_ever()

    async def _read(self, number: int) -> None:
        with spending(self.run):
            await self.answered.wait()
        self.reached.append(number)


@in_loop
async def test_tasks_started_inside_finish_too() -> None:
    siblings = Siblings()
    await settle()
    siblings.run.cancel("disconnect")
    await settle()
    siblings.clock.advance(5.0)
    await settle()
    siblings.answered.set()
    with pytest.raises(RunCancelled):
        await siblings.task
    assert sorted(siblings.reached) == [1, 2]


@in_loop
async def test_and_are_cut_beyond_the_budget() -> None:
    siblings = Siblings()
    await settle()
    siblings.run.cancel("disconnect")
    await settle()
    siblings.clock.advance(10.0)
    with pytest.raises(RunCancelled):
        await siblings.task
    assert siblings.reached == []


@in_loop
async def test_what_is_drained_is_not_reported_as_one_that_does_not_stop() -> None:
    with witness() as seen:
        drained = Drained(FakeClock())
        await settle()
        drained.run.cancel("disconnect")
        await settle()
        drained.clock.advance(9.0)  # more than HANGUP_SETTLE
        await settle()
        drained.answered.set()
        with pytest.raises(RunCancelled):
            await drained.task
    assert [event[2] for event in seen.of("settled")] == [0]


@in_loop
async def test_a_task_with_a_block_of_its_own_is_waited_for_by_the_run() -> None:
    """So is an answer read that a framework would cut with its response."""
    clock = FakeClock()
    answered = asyncio.Event()
    reached: list[str] = []
    runs: list[Run] = []

    async def read(run: Run) -> None:
        async with hangup.drain(budget=10.0):
            with spending(run):
                await answered.wait()
            reached.append("answered")

    async def work() -> None:
        async with hangup.run(clock=clock) as run:
            runs.append(run)
            readers.append(asyncio.create_task(read(run)))
            await for_ever()

    readers: list[asyncio.Task[None]] = []
    task = asyncio.create_task(work())
    await settle()
    runs[0].cancel("disconnect")
    await settle()
    clock.advance(9.0)
    await settle()
    assert not task.done()
    answered.set()
    with pytest.raises(RunCancelled):
        await task
    assert reached == ["answered"]


# Threads


@in_loop
async def test_a_thread_that_is_started_inside_goes_on() -> None:
    clock = FakeClock()
    begun, abandoned = threading.Event(), threading.Event()
    said: list[BaseException | None] = []

    def read(run: Run) -> None:
        begun.set()
        assert abandoned.wait(10)
        said.append(stop_here(run, under_way=True))
        said.append(stop_here(run))

    async def work() -> None:
        async with hangup.run(clock=clock) as run:
            async with hangup.drain():
                reading = asyncio.create_task(hangup.to_thread(read, run))
                await asyncio.to_thread(begun.wait, 10)
                run.cancel("disconnect")
                abandoned.set()
                await reading
            await for_ever()

    with pytest.raises(RunCancelled):
        await asyncio.create_task(work())
    assert said[0] is None
    assert isinstance(said[1], Stop)


@in_loop
async def test_a_cancel_from_another_thread_is_held_back_too() -> None:
    drained = Drained(FakeClock())
    await settle()
    await asyncio.to_thread(drained.run.cancel, "disconnect")
    await settle()
    assert not drained.task.done()
    drained.answered.set()
    with pytest.raises(RunCancelled):
        await drained.task
    assert drained.reached == ["answered", "left the block"]


# Used in a way that cannot work


def test_entered_twice() -> None:
    block = hangup.drain()
    with block, pytest.raises(MisuseError, match="entered twice; call it again"), block:
        pass


def test_left_without_being_entered() -> None:
    with pytest.raises(MisuseError, match="left that had not been entered; use it as"):
        hangup.drain().__exit__(None, None, None)


@in_loop
async def test_left_in_another_task() -> None:
    async with hangup.run() as run:
        block = hangup.drain()
        await block.__aenter__()
        with pytest.raises(MisuseError, match="enter and leave it in the same task"):
            await asyncio.create_task(block.__aexit__(None, None, None))
        assert run.work.tree.drains == set()


def test_left_while_a_block_inside_it_is_open() -> None:
    def misuse() -> None:
        mine = KeyError("mine")
        with hangup.run():
            outer, inner = hangup.drain(), hangup.cleanup()
            outer.__enter__()
            inner.__enter__()
            with pytest.raises(MisuseError, match="nest the 'with' blocks") as error:
                outer.__exit__(KeyError, mine, None)
            assert error.value.__cause__ is mine
            inner.__exit__(None, None, None)

    # What is misused so leaves its place behind.
    contextvars.Context().run(misuse)


@pytest.mark.parametrize("budget", [-1.0, float("nan"), float("inf"), None, "soon"])
def test_a_budget_that_is_none(budget: float) -> None:
    with pytest.raises(ConfigError, match="budget"):
        hangup.drain(budget=budget)
