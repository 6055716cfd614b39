"""Timers fire once, in order, where they were armed; a cancelled one never does."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING

from support.core import in_loop

from hangup.core import guard
from hangup.core.clock import SYSTEM_CLOCK, SystemClock, _TimerThread, unix_offset
from hangup.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

# A generous limit for what another thread does at once; reached only by a failure.
AT_MOST = 10.0


def test_the_system_clock_reads_the_machines_clocks() -> None:
    before = (time.monotonic(), time.time())
    read = (SYSTEM_CLOCK.monotonic(), SYSTEM_CLOCK.wall())
    after = (time.monotonic(), time.time())
    assert before[0] <= read[0] <= after[0]
    assert before[1] <= read[1] <= after[1]


def test_the_offset_turns_a_monotonic_instant_into_unix_time() -> None:
    clock = FakeClock(wall=5_000.0)
    deadline = clock.monotonic() + 30
    assert deadline + unix_offset(clock) == 5_030.0
    clock.set_wall(9_000.0)
    assert deadline + unix_offset(clock) == 9_030.0


@in_loop
async def test_in_a_loop_a_timer_fires_on_the_loops_thread() -> None:
    fired: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    SYSTEM_CLOCK.call_at(
        SYSTEM_CLOCK.monotonic(), lambda: fired.set_result(threading.get_ident())
    )
    assert await asyncio.wait_for(fired, AT_MOST) == threading.get_ident()


@in_loop
async def test_in_a_loop_a_cancelled_timer_never_fires() -> None:
    fired: list[str] = []
    done = asyncio.Event()
    now = SYSTEM_CLOCK.monotonic()
    first = SYSTEM_CLOCK.call_at(now, lambda: fired.append("first"))
    SYSTEM_CLOCK.call_at(now, done.set)
    first.cancel()
    first.cancel()
    await asyncio.wait_for(done.wait(), AT_MOST)
    assert fired == []


class HeldThread:
    """A timer thread that is kept busy until everything is armed."""

    def __init__(self) -> None:
        self.timers = _TimerThread()
        self.fired: list[str] = []
        self.idents: set[int] = set()
        self._release = threading.Event()
        self._done = threading.Event()
        self.arm(-100.0, lambda: self._release.wait(AT_MOST))

    def arm(self, when: float, callback: Callable[[], object]) -> Callable[[], None]:
        return self.timers.call_at(when, lambda: (callback(), None)[1]).cancel

    def note(self, when: float, name: str) -> Callable[[], None]:
        def callback() -> None:
            self.idents.add(threading.get_ident())
            self.fired.append(name)

        return self.arm(when, callback)

    def run(self) -> list[str]:
        self.arm(-1.0, self._done.set)
        self._release.set()
        assert self._done.wait(AT_MOST)
        return self.fired


def test_without_a_loop_timers_fire_on_one_thread_in_the_order_of_their_times() -> None:
    held = HeldThread()
    held.note(-2.0, "third")
    held.note(-4.0, "first")
    held.note(-3.0, "second")
    assert held.run() == ["first", "second", "third"]
    assert len(held.idents) == 1
    assert threading.get_ident() not in held.idents


def test_without_a_loop_a_cancelled_timer_never_fires() -> None:
    held = HeldThread()
    cancel = held.note(-3.0, "cancelled")
    held.note(-2.0, "kept")
    cancel()
    cancel()
    assert held.run() == ["kept"]


def test_without_a_loop_a_timer_that_is_due_later_does_not_hold_up_an_earlier_one() -> (
    None
):
    held = HeldThread()
    later = held.note(time.monotonic() + 3_600, "later")
    held.note(-2.0, "now")
    assert held.run() == ["now"]
    later()


def test_without_a_loop_a_thread_that_waits_is_woken_for_an_earlier_timer() -> None:
    timers = _TimerThread()
    later = timers.call_at(time.monotonic() + 3_600, lambda: None)
    while not timers._condition._waiters:  # type: ignore[attr-defined]
        time.sleep(0)
    fired = threading.Event()
    timers.call_at(0.0, fired.set)
    assert fired.wait(AT_MOST)
    later.cancel()


def test_without_a_loop_a_thread_that_waits_is_not_woken_for_a_later_timer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Woken for nothing, it would keep the interpreter from who waits longer."""
    timers = _TimerThread()
    woken: list[None] = []
    notify = timers._condition.notify
    monkeypatch.setattr(timers._condition, "notify", lambda: woken.append(notify()))
    far = time.monotonic() + 3_600
    armed = [timers.call_at(far + number, lambda: None) for number in range(3)]
    assert not woken
    armed.append(timers.call_at(far - 1, lambda: None))
    assert len(woken) == 1
    for timer in armed:
        timer.cancel()


def test_a_fault_in_a_callback_does_not_stop_the_timers_after_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    guard.strict(False)  # noqa: FBT003  a switch

    def fault() -> None:
        raise ArithmeticError("a fault in a timer's callback")

    held = HeldThread()
    held.arm(-3.0, fault)
    held.note(-2.0, "after")
    assert held.run() == ["after"]
    assert "a fault in a timer's callback" in caplog.text


def test_the_timer_thread_ends_when_idle_and_starts_again_when_needed() -> None:
    timers = _TimerThread()
    timers._IDLE_SECONDS = 0.0
    for _ in range(2):
        threads: list[threading.Thread] = []
        fired = threading.Event()

        def callback(
            threads: list[threading.Thread] = threads, fired: threading.Event = fired
        ) -> None:
            threads.append(threading.current_thread())
            fired.set()

        timers.call_at(0.0, callback)
        assert fired.wait(AT_MOST)
        threads[0].join(AT_MOST)
        assert not threads[0].is_alive()
        assert threads[0].daemon


def test_the_system_clock_uses_its_thread_where_no_loop_runs() -> None:
    fired = threading.Event()
    names: list[str] = []

    def callback() -> None:
        names.append(threading.current_thread().name)
        fired.set()

    SystemClock().call_at(0.0, callback)
    assert fired.wait(AT_MOST)
    assert names == ["hangup-timer"]


def test_cancelled_timers_of_the_far_future_do_not_pile_up() -> None:
    held = HeldThread()
    kept = held.note(time.monotonic() + 1_800, "kept")
    for _ in range(2_000):
        held.timers.call_at(time.monotonic() + 3_600, lambda: None).cancel()
    held.run()
    assert 1 <= len(held.timers._heap) < 1_000
    kept()


def test_a_child_process_gets_a_timer_thread_of_its_own() -> None:
    held = HeldThread()
    held.run()
    held.timers.after_fork()
    held.fired.clear()
    fired = threading.Event()
    held.timers.call_at(0.0, fired.set)
    assert fired.wait(AT_MOST)
