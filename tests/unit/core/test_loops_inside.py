"""A run opened on a thread, and event loops that come and go in it.

So works an agent framework's ``run_sync`` in a handler that blocks, and an ``async``
view of Flask or Django under WSGI.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from asgiref.sync import async_to_sync

import hangup
from hangup.core.clock import SYSTEM_CLOCK, timer_of
from hangup.core.opening import open_call
from hangup.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from hangup.core.run import Run

    Runs = Callable[[Coroutine[Any, Any, None]], None]

_PATIENCE = 10.0


def with_asyncio_run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


def with_a_loop(work: Coroutine[Any, Any, None]) -> None:
    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(work)
    finally:
        loop.close()


def with_asgiref(work: Coroutine[Any, Any, None]) -> None:
    async def call() -> None:
        await work

    async_to_sync(call)()


def with_a_thread(work: Coroutine[Any, Any, None]) -> None:
    context = contextvars.copy_context()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(context.run, asyncio.run, work).result()


WAYS = [with_asyncio_run, with_a_loop, with_asgiref, with_a_thread]


async def spend(run: Run, started: threading.Event, ended: list[str]) -> None:
    """Have a spending call open until it is cut."""
    number = open_call(run)
    try:
        started.set()
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        ended.append("cancelled")
        raise
    finally:
        run.work.call_closed(number)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("mode", ["enforce", "observe"])
def test_what_spends_in_a_loop_inside_is_stopped(way: Runs, mode: str) -> None:
    """Also in observe mode: a kill acts in every mode."""
    started = threading.Event()
    ended: list[str] = []

    def kill(run: Run) -> None:
        assert started.wait(_PATIENCE)
        run.cancel("killed")

    def body() -> None:
        with hangup.run(mode=mode) as run:
            killer = threading.Thread(target=kill, args=(run,))
            killer.start()
            try:
                way(spend(run, started, ended))
            finally:
                killer.join()

    with pytest.raises(hangup.RunCancelled) as caught:
        body()
    assert caught.value.cause == "killed"
    assert ended == ["cancelled"]


def test_a_cancel_of_somebody_elses_stays_one() -> None:
    async def cancelled() -> None:
        asyncio.current_task().cancel()  # type: ignore[union-attr]
        await asyncio.sleep(60)

    with pytest.raises(asyncio.CancelledError), hangup.run() as run:
        asyncio.run(cancelled())
    assert run.cause == "failed"


def test_a_deadline_outlives_the_loop_that_the_run_began_to_spend_in() -> None:
    fired = threading.Event()

    async def arm() -> None:
        call_at = timer_of(SYSTEM_CLOCK, on_loop=False)
        call_at(SYSTEM_CLOCK.monotonic() + 0.05, fired.set)

    asyncio.run(arm())
    assert fired.wait(_PATIENCE)


def test_a_clock_without_that_choice_is_taken_as_it_is() -> None:
    clock = FakeClock()
    fired: list[int] = []
    timer_of(clock, on_loop=False)(clock.monotonic() + 1, lambda: fired.append(1))
    clock.advance(2)
    assert fired == [1]


def test_a_run_that_begins_to_spend_in_one_loop_is_stopped_in_the_next() -> None:
    started = threading.Event()
    ended: list[str] = []

    async def begin(run: Run) -> None:
        run.check()

    def body() -> None:
        # Latent, as a server opens it: the deadline is armed with the first call.
        with hangup.run(0.2, latent=True) as run:
            asyncio.run(begin(run))
            asyncio.run(spend(run, started, ended))

    with pytest.raises(hangup.DeadlineExceeded):
        body()
    assert ended == ["cancelled"]
