"""Blocking work knows its run: checked first, stopped by its own calls, reported."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import threading
import time
from typing import TYPE_CHECKING

import pytest
from support.core import in_loop, settle, witness

import hangup
from hangup.core.threads import _Turn
from hangup.core.work import Work
from hangup.errors import DeadlineExceeded, RunCancelled, Stop
from hangup.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable

    from hangup.core.run import Run

AT_MOST = 10.0


@in_loop
async def test_it_returns_what_the_function_returns_and_carries_the_run() -> None:
    def work(a: int, *, b: int) -> tuple[int, object, int]:
        return a + b, hangup.current_run(), threading.get_ident()

    async with hangup.run() as run:
        result, inside, thread = await hangup.to_thread(work, 1, b=2)
    assert (result, inside) == (3, run)
    assert thread != threading.get_ident()
    assert run.work.threads == 0


@in_loop
async def test_outside_a_run_it_is_an_ordinary_thread() -> None:
    assert await hangup.to_thread(hangup.current_run) is None


@in_loop
async def test_the_error_of_the_function_passes_unchanged() -> None:
    mine = KeyError("mine")

    def fail() -> None:
        raise mine

    with pytest.raises(KeyError) as error:
        async with hangup.run() as run:
            await hangup.to_thread(fail)
    assert error.value is mine
    assert run.work.threads == 0


@in_loop
async def test_nothing_starts_in_an_abandoned_run() -> None:
    called: list[str] = []
    with pytest.raises(RunCancelled):
        async with hangup.run() as run:
            run.cancel()
            await hangup.to_thread(called.append, "x")
    assert called == []


@in_loop
async def test_nothing_starts_with_too_little_time() -> None:
    called: list[str] = []
    clock = FakeClock()
    with pytest.raises(DeadlineExceeded):
        async with hangup.run(budget=1.0, clock=clock):
            await hangup.to_thread(called.append, "x", needs=2.0)
    assert called == []


class Blocking:
    """A function that blocks its thread until released, then asks."""

    def __init__(self) -> None:
        self.started = threading.Event()
        self.release = threading.Event()
        self.caught: list[BaseException] = []
        self.ended = threading.Event()

    def __call__(self) -> None:
        self.started.set()
        self.release.wait(AT_MOST)
        try:
            hangup.check()
        except BaseException as error:  # noqa: BLE001  to look at it
            self.caught.append(error)
        finally:
            self.ended.set()

    async def has_started(self) -> None:
        await asyncio.to_thread(self.started.wait, AT_MOST)


@in_loop
async def test_a_thread_of_the_run_gets_the_signal() -> None:
    blocking = Blocking()
    async with hangup.run(mode="refuse") as run:
        task = asyncio.create_task(hangup.to_thread(blocking))
        await blocking.has_started()
        run.cancel("disconnect")
        blocking.release.set()
        await task
    assert [type(error) for error in blocking.caught] == [Stop]


@in_loop
async def test_a_thread_gets_an_ordinary_error_once_the_scope_was_left() -> None:
    """No boundary is left that would turn the signal into one."""
    blocking = Blocking()
    with pytest.raises(KeyError), hangup.run(clock=FakeClock()):
        task = asyncio.create_task(hangup.to_thread(blocking))
        await blocking.has_started()
        raise KeyError
    blocking.release.set()
    await task
    assert [type(error) for error in blocking.caught] == [RunCancelled]


@in_loop
async def test_a_thread_of_a_pool_gets_an_ordinary_error() -> None:
    """Also where the pool was handed the context: a BaseException would kill it."""
    blocking = Blocking()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        async with hangup.run(mode="refuse") as run:
            future = pool.submit(contextvars.copy_context().run, blocking)
            await blocking.has_started()
            run.cancel("disconnect")
            blocking.release.set()
            await asyncio.wrap_future(future)
        assert pool.submit(int, "7").result(AT_MOST) == 7
    assert [type(error) for error in blocking.caught] == [RunCancelled]


def on_a_workers_thread(work: Callable[[], object]) -> list[BaseException]:
    """Do it where the run reaches, though not as its own; return what came out."""
    caught: list[BaseException] = []

    def call() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001  to look at it
            caught.append(error)

    thread = threading.Thread(target=contextvars.copy_context().run, args=(call,))
    thread.start()
    thread.join(AT_MOST)
    return caught


def test_a_scope_on_a_workers_thread_lets_no_signal_out() -> None:
    """The stop is that of the run above: inside the signal, outside an error."""
    inside: list[BaseException] = []

    def job() -> None:
        with hangup.run(name="job"), hangup.run(name="step"):
            try:
                hangup.check()
            except BaseException as error:
                inside.append(error)
                raise

    with pytest.raises(RunCancelled), hangup.run(name="above") as run:
        run.cancel("disconnect")
        (came_out,) = on_a_workers_thread(job)
        run.check()
    assert [type(error) for error in inside] == [Stop]
    assert isinstance(came_out, RunCancelled)
    assert came_out.run_name == "above"


def test_a_scope_on_the_runs_own_thread_lets_the_signal_through() -> None:
    with pytest.raises(RunCancelled), hangup.run(name="above") as run:
        run.cancel("disconnect")
        with pytest.raises(Stop), hangup.run(name="below"):
            hangup.check()
        run.check()


def stopped_with_a_thread(
    clock: FakeClock, inside: Callable[[Blocking], object], *, child: bool = False
) -> list[tuple[object, ...]]:
    """Abandon a run while a thread works for it; return what was reported settled."""
    with witness() as seen:

        @in_loop
        async def scenario() -> None:
            blocking = Blocking()

            async def work() -> None:
                async with hangup.run(name="r", clock=clock) as run:
                    runs.append(run)
                    if not child:
                        await hangup.to_thread(blocking)
                        return
                    async with hangup.run(name="child", clock=clock):
                        await hangup.to_thread(blocking)

            runs: list[Run] = []
            task = asyncio.create_task(work())
            await blocking.has_started()
            runs[0].cancel("disconnect")
            await settle()
            assert not task.done()
            inside(blocking)
            with pytest.raises(RunCancelled):
                await task
            blocking.release.set()
            await asyncio.to_thread(blocking.ended.wait, AT_MOST)

        scenario()
    return seen.of("settled")


@pytest.mark.parametrize("child", [False, True])
def test_a_run_waits_for_its_thread_and_its_childrens(child: bool) -> None:  # noqa: FBT001
    settled = stopped_with_a_thread(
        FakeClock(), lambda blocking: blocking.release.set(), child=child
    )
    assert settled == [("settled", "r", 0)]


@pytest.mark.parametrize("child", [False, True])
def test_a_thread_that_goes_on_is_reported_after_settle(child: bool) -> None:  # noqa: FBT001
    clock = FakeClock()
    settled = stopped_with_a_thread(clock, lambda _: clock.advance(5.0), child=child)
    assert settled == [("settled", "r", 1)]


@in_loop
async def test_work_that_was_cancelled_before_a_thread_took_it_is_not_waited_for() -> (
    None
):
    loop = asyncio.get_running_loop()
    pool = concurrent.futures.ThreadPoolExecutor(1)
    loop.set_default_executor(pool)
    release = threading.Event()
    called: list[str] = []
    busy = loop.run_in_executor(None, release.wait, AT_MOST)
    with witness() as seen:
        with pytest.raises(RunCancelled):
            async with hangup.run(name="r", clock=FakeClock()) as run:
                loop.call_soon(run.cancel)
                await hangup.to_thread(called.append, "x")
        assert run.work.threads == 0
        assert seen.of("settled") == [("settled", "r", 0)]
    release.set()
    await busy
    await loop.run_in_executor(None, int)
    assert called == []
    assert run.work.threads == 0


@in_loop
async def test_work_that_a_thread_took_as_it_was_cancelled_is_counted() -> None:
    async with hangup.run() as run:
        turn = _Turn(run)
        assert run.work.threads == 1
        turn.give_up()
        assert run.work.threads == 0
        turn.begin()
        assert run.work.threads == 1
        turn.end()
        assert run.work.threads == 0


def test_a_thread_that_ends_while_the_scope_begins_to_wait_wakes_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The end may come between any two steps of the waiting."""
    blocking = Blocking()
    arm = Work._arm_report

    def and_then_the_thread_ends(work: Work) -> None:
        arm(work)
        blocking.release.set()
        while work.threads:
            time.sleep(0)

    @in_loop
    async def scenario() -> None:
        async with asyncio.timeout(AT_MOST):
            with pytest.raises(KeyError):
                async with hangup.run(clock=FakeClock()):
                    task = asyncio.create_task(hangup.to_thread(blocking))
                    await blocking.has_started()
                    monkeypatch.setattr(Work, "_arm_report", and_then_the_thread_ends)
                    raise KeyError
        await task

    scenario()


# Runs in plain threads


def test_a_run_in_a_thread_of_its_own_with_no_loop() -> None:
    caught: list[BaseException] = []
    runs: list[Run] = []
    opened, go = threading.Event(), threading.Event()

    def work() -> None:
        try:
            with hangup.run(name="sync") as run:
                runs.append(run)
                opened.set()
                go.wait(AT_MOST)
                hangup.check()
        except BaseException as error:  # noqa: BLE001  to look at it
            caught.append(error)

    with witness() as seen:
        thread = threading.Thread(target=work)
        thread.start()
        assert opened.wait(AT_MOST)
        runs[0].cancel("killed", "by operator")
        go.set()
        thread.join(AT_MOST)
    (error,) = caught
    assert isinstance(error, RunCancelled)
    assert isinstance(error.__cause__, Stop)
    assert seen.of("settled") == [("settled", "sync", 0)]


def test_the_deadline_of_a_run_in_a_thread_is_noticed_without_a_loop() -> None:
    told = threading.Event()
    with pytest.raises(DeadlineExceeded), hangup.run(budget=0.0) as run:
        run.on_abandon(lambda _: told.set())
        assert told.wait(AT_MOST)
        hangup.check()


def test_a_run_that_is_open_when_its_loop_closes_can_still_be_cancelled() -> None:
    runs: list[Run] = []

    async def main() -> None:
        scope = hangup.run(name="left open", clock=FakeClock())
        runs.append(await scope.__aenter__())

    asyncio.run(main())
    assert runs[0].cancel("shutdown")
    assert runs[0].cause == "shutdown"
    runs[0].close()
