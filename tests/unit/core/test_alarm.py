"""A timer that one thread arms while another says that it is too late."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from hangup.core.alarm import Alarm
from hangup.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def test_it_goes_off_once(clock: FakeClock) -> None:
    rung: list[float] = []
    alarm, at = Alarm(), clock.monotonic() + 5
    for _ in range(2):
        alarm.arm(clock.call_at, at, lambda: rung.append(clock.monotonic()))
    clock.advance(10)
    assert rung == [at]


def test_stopped_it_never_goes_off_nor_is_it_armed_again(clock: FakeClock) -> None:
    rung: list[int] = []
    alarm = Alarm()
    alarm.arm(clock.call_at, clock.monotonic() + 1, lambda: rung.append(1))
    alarm.stop()
    alarm.stop()
    assert clock.pending == 0
    alarm.arm(clock.call_at, clock.monotonic() + 1, lambda: rung.append(2))
    alarm.again(clock.call_at, clock.monotonic() + 1, lambda: rung.append(3))
    assert clock.pending == 0
    clock.advance(2)
    assert rung == []


def test_it_may_be_armed_anew_after_it_went_off(clock: FakeClock) -> None:
    rung: list[int] = []
    alarm, begin = Alarm(), clock.monotonic()
    alarm.arm(clock.call_at, begin + 1, lambda: rung.append(1))
    clock.advance(1)
    alarm.again(clock.call_at, begin + 2, lambda: rung.append(2))
    clock.advance(1)
    assert rung == [1, 2]


def test_stopped_in_the_moment_it_is_armed_it_does_not_go_off() -> None:
    class Late(FakeClock):
        def call_at(self, when: float, callback: Callable[[], None]) -> object:  # type: ignore[override]
            timer = super().call_at(when, callback)
            alarm.stop()  # another thread, before we could keep the timer
            return timer

    alarm, clock = Alarm(), Late()
    alarm.arm(clock.call_at, clock.monotonic() + 1, pytest.fail)  # type: ignore[arg-type]
    assert clock.pending == 0
