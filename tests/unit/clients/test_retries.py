"""tenacity's loops end with the stop, and never sleep for an attempt in vain."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from typing import TYPE_CHECKING, Any

import pytest
import tenacity
from support.core import in_loop, settle, spending, witness
from tenacity.asyncio import AsyncRetrying

import hangup
from hangup.clients import retries
from hangup.errors import DeadlineExceeded, RunCancelled, Stop
from hangup.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture(autouse=True)
def _installed() -> Iterator[None]:
    retries.install()
    yield
    retries.uninstall()


class Loop:
    """A retry loop around something, with a clock that its sleeps move."""

    def __init__(self, clock: FakeClock | None = None, **options: Any) -> None:
        self.clock = clock or FakeClock()
        self.slept: list[float] = []
        self.attempts = 0
        self.options: dict[str, Any] = {
            "retry": tenacity.retry_if_not_exception_type(ValueError),
            "stop": tenacity.stop_after_attempt(5),
            "wait": tenacity.wait_fixed(10),
            **options,
        }

    def sleep(self, seconds: float) -> None:
        self.slept.append(float(seconds))
        self.clock.advance(float(seconds))

    def __call__(self, function: Callable[[], Any]) -> Any:
        def attempt() -> Any:
            self.attempts += 1
            return function()

        return tenacity.Retrying(sleep=self.sleep, **self.options)(attempt)

    async def asynchronous(self, function: Callable[[], Any]) -> Any:
        async def attempt() -> Any:
            self.attempts += 1
            return await function()

        async def sleep(seconds: float) -> None:
            self.sleep(seconds)

        return await AsyncRetrying(sleep=sleep, **self.options)(attempt)


def test_b3_retry_unless_ends_with_the_stop() -> None:
    loop = Loop()
    with pytest.raises(RunCancelled) as error, hangup.run(clock=loop.clock) as run:
        run.cancel("disconnect")
        loop(hangup.check)
    assert isinstance(error.value.__cause__, Stop)
    assert (loop.attempts, loop.slept) == (1, [])


def test_b3_on_another_thread_it_ends_with_the_ordinary_error() -> None:
    loop = Loop()
    caught: list[BaseException] = []

    def work() -> None:
        try:
            loop(run.check)
        except Exception as error:  # noqa: BLE001  to look at it
            caught.append(error)

    with pytest.raises(RunCancelled), hangup.run(clock=loop.clock) as run:
        run.cancel("disconnect")
        context = contextvars.copy_context()
        thread = threading.Thread(target=context.run, args=(work,))
        thread.start()
        thread.join(10)
        run.check()
    assert [type(error) for error in caught] == [RunCancelled]
    assert (loop.attempts, loop.slept) == (1, [])


@in_loop
async def test_b3_the_cancel_of_a_task_is_not_retried() -> None:
    loop = Loop()
    swallowed: list[Any]
    with witness() as seen:
        with pytest.raises(RunCancelled):
            async with hangup.run(clock=loop.clock) as run:
                asyncio.get_running_loop().call_soon(run.cancel, "disconnect")
                await loop.asynchronous(asyncio.Event().wait)
        swallowed = seen.of("swallowed")
    assert (loop.attempts, loop.slept) == (1, [])
    assert swallowed == []


@in_loop
async def test_a_cancel_that_is_not_ours_is_retried_as_the_user_said() -> None:
    loop = Loop()

    async def fail() -> None:
        raise asyncio.CancelledError

    async with hangup.run(clock=loop.clock):
        with pytest.raises(tenacity.RetryError):
            await loop.asynchronous(fail)
    assert (loop.attempts, loop.slept) == (5, [10.0] * 4)


def failing() -> None:
    raise KeyError("mine")


def refused_or_failing() -> None:
    hangup.check()
    failing()


def test_a_failure_in_a_stopped_run_is_not_retried_and_does_not_hide_the_stop() -> None:
    loop = Loop()

    def fail() -> None:
        run.cancel("disconnect")
        failing()

    with pytest.raises(RunCancelled) as error, hangup.run(clock=loop.clock) as run:
        loop(fail)
    assert isinstance(error.value.__cause__, Stop)
    assert isinstance(error.value.__cause__.__context__, KeyError | type(None))
    assert (loop.attempts, loop.slept) == (1, [])


def test_polling_for_a_result_ends_with_the_stop_not_with_the_result() -> None:
    loop = Loop(retry=tenacity.retry_if_result(lambda result: result is None))

    def poll() -> None:
        run.cancel("disconnect")

    with pytest.raises(RunCancelled), hangup.run(clock=loop.clock) as run:
        loop(poll)
        raise AssertionError("None was taken for a result")
    assert (loop.attempts, loop.slept) == (1, [])


def test_for_attempt_in_retrying_ends_with_the_stop_too() -> None:
    loop = Loop()
    with pytest.raises(RunCancelled), hangup.run(clock=loop.clock) as run:
        run.cancel("disconnect")
        for attempt in tenacity.Retrying(sleep=loop.sleep, **loop.options):
            with attempt:
                loop.attempts += 1
                hangup.check()
    assert (loop.attempts, loop.slept) == (1, [])


def test_a_sleep_that_would_outlast_the_run_is_not_begun() -> None:
    """It gives up as after its last attempt; the rest of the time is the caller's."""
    loop = Loop()
    with hangup.run(budget=25.0, clock=loop.clock) as run:
        with pytest.raises(tenacity.RetryError) as error:
            loop(failing)
        assert run.remaining() == 5.0
        assert run.cause is None
    assert isinstance(error.value.last_attempt.exception(), KeyError)
    assert (loop.attempts, loop.slept) == (3, [10.0, 10.0])


def test_in_refuse_mode_nothing_in_flight_is_cut() -> None:
    loop = Loop()
    with (
        pytest.raises(DeadlineExceeded),
        hangup.run(budget=25.0, mode="refuse", clock=loop.clock),
    ):
        loop(refused_or_failing)
    # The fourth is refused, and that is the end.
    assert (loop.attempts, loop.slept) == (4, [10.0] * 3)


@in_loop
async def test_on_a_task_the_stop_ends_the_sleep() -> None:
    clock = FakeClock()
    attempts = 0

    async def fail() -> None:
        nonlocal attempts
        attempts += 1
        failing()

    async def work() -> None:
        async with hangup.run(budget=5.0, clock=clock):
            wait, stop = tenacity.wait_fixed(60), tenacity.stop_after_attempt(5)
            await AsyncRetrying(wait=wait, stop=stop)(fail)

    task = asyncio.create_task(work())
    await settle()
    clock.advance(5.0)
    with pytest.raises(DeadlineExceeded):
        await task
    assert attempts == 1


def test_with_time_left_and_outside_a_run_everything_is_retried() -> None:
    for around in (hangup.run(budget=60.0), hangup.run(), contextlib.nullcontext()):
        loop = Loop(FakeClock(), wait=tenacity.wait_fixed(1))
        with around, pytest.raises(tenacity.RetryError):
            loop(failing)
        assert (loop.attempts, loop.slept) == (5, [1.0] * 4)


def test_a_budget_of_one_attempt_is_not_the_stop_of_the_loop() -> None:
    """The run around the loop is healthy: its attempts may time out and be repeated."""
    loop = Loop()

    def attempt() -> None:
        with hangup.run(budget=1.0, clock=loop.clock) as inner:
            loop.clock.advance(2.0)
            inner.check()

    with hangup.run(clock=loop.clock), pytest.raises(tenacity.RetryError):
        loop(attempt)
    assert loop.attempts == 5


def test_in_a_cleanup_retries_go_on() -> None:
    loop = Loop(wait=tenacity.wait_fixed(0.5))
    with pytest.raises(RunCancelled), hangup.run(clock=loop.clock) as run:
        try:
            run.cancel("disconnect")
            hangup.check()
        finally:
            with (
                hangup.cleanup(budget=60, clock=loop.clock),
                pytest.raises(tenacity.RetryError),
            ):
                loop(failing)
    assert loop.attempts == 5


@in_loop
async def test_a_task_that_is_left_ends_its_loop_too() -> None:
    """Its call is open when the run ends: it gets its one cancel, and keeps it."""
    loop = Loop()
    hanging = asyncio.Event()

    async def attempt() -> None:
        run = hangup.current_run()
        assert run is not None
        with spending(run):
            hanging.set()
            await asyncio.Event().wait()

    with pytest.raises(KeyError):
        async with hangup.run(clock=loop.clock):
            task = asyncio.create_task(loop.asynchronous(attempt))
            await hanging.wait()
            failing()
    assert task.cancelled()
    assert loop.attempts == 1


def test_taking_it_off_restores_every_method() -> None:
    retries.uninstall()
    classes = (tenacity.BaseRetrying, tenacity.Retrying, AsyncRetrying)
    before = [dict(vars(cls)) for cls in classes]
    retries.install()
    retries.install()
    assert [dict(vars(cls)) for cls in classes] != before
    retries.uninstall()
    assert [dict(vars(cls)) for cls in classes] == before
