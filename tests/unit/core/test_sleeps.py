"""A machine that slept through a deadline wakes to a run that is over."""

from __future__ import annotations

import gc
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest
from support.requires import require

from hangup.core import registry
from hangup.core.scope import RunScope
from hangup.core.sleeps import EVERY, Sleeps, asleep
from hangup.errors import DeadlineExceeded
from hangup.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Iterator


class Machine:
    """A clock that moves, and one more that has gone on while it slept."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.slept: float | None = 7.0  # before anybody looked
        self.looks = 0
        self.watch = Sleeps(self.clock, self._read)

    def _read(self) -> float | None:
        self.looks += 1
        return self.slept

    def sleeps(self, seconds: float) -> None:
        assert self.slept is not None
        self.slept += seconds

    def run(self, budget: float | None = 10.0, **options: Any) -> RunScope:
        return RunScope(budget, name="test", clock=self.clock, **options)


@pytest.fixture
def machine() -> Iterator[Machine]:
    machine = Machine()
    registry.add_observer(machine.watch)
    yield machine
    registry.remove_observer(machine.watch)


def test_e2_clock_step_and_suspend_suspend(machine: Machine) -> None:
    """(iii): 60 s asleep, two seconds into ten: stopped within one of waking."""
    with pytest.raises(DeadlineExceeded) as caught, machine.run() as run:
        machine.clock.advance(2.0)
        machine.sleeps(60.0)
        assert run.abandonment is None
        machine.clock.advance(EVERY)
        assert run.abandonment is not None
        run.check()
    assert "suspended" in str(caught.value)
    assert caught.value.cause == "deadline"


def test_a_sleep_that_the_deadline_outlasts_tightens_it_by_as_much(
    machine: Machine,
) -> None:
    with pytest.raises(DeadlineExceeded), machine.run() as run:
        machine.clock.advance(2.0)
        machine.sleeps(5.0)
        machine.clock.advance(2.0)
        assert run.abandonment is None  # 9 s of the 10
        machine.clock.advance(1.5)
        assert run.abandonment is not None
        run.check()


def test_a_run_inside_that_began_after_the_sleep_goes_on_by_its_own(
    machine: Machine,
) -> None:
    with machine.run(100.0) as outer:
        machine.sleeps(60.0)
        machine.clock.advance(1.0)
        with machine.run(30.0) as inner:
            machine.clock.advance(29.0)
            assert inner.abandonment is None
        assert outer.abandonment is None


def test_a_run_that_began_after_the_sleep_has_all_of_its_time(
    machine: Machine,
) -> None:
    with machine.run():
        pass
    machine.sleeps(60.0)
    with machine.run() as run:
        machine.clock.advance(9.5)
        assert run.abandonment is None


@pytest.mark.parametrize("options", [{"mode": "observe"}, {"budget": None}])
def test_what_no_deadline_abandons_sleeps_on(
    machine: Machine, options: dict[str, Any]
) -> None:
    with machine.run(**options) as run:
        machine.sleeps(3600.0)
        machine.clock.advance(5.0)
        assert run.abandonment is None
    assert machine.looks == 0


def test_it_looks_only_while_there_is_somebody_to_look_for(machine: Machine) -> None:
    with machine.run(100.0):
        machine.clock.advance(10.0)
    looked = machine.looks
    assert looked == pytest.approx(10.0 / EVERY, abs=2)
    machine.clock.advance(50.0)
    assert machine.looks <= looked + 1
    with machine.run(100.0):
        machine.clock.advance(10.0)
    assert machine.looks > looked + 10


def test_a_run_that_nobody_closes_is_not_kept(machine: Machine) -> None:
    scope = machine.run(100.0)
    scope.__enter__()
    scope.step_out()
    assert len(machine.watch._runs) == 1
    del scope
    gc.collect()
    assert len(machine.watch._runs) == 0


def test_a_clock_that_cannot_be_read_stops_nothing(machine: Machine) -> None:
    with machine.run() as run:
        machine.slept = None
        machine.clock.advance(5.0)
        assert run.abandonment is None
        machine.slept = 7.0
        machine.clock.advance(1.0)
        assert run.abandonment is None


def test_this_machine_says_how_long_it_has_slept() -> None:
    require("clock that counts sleep, as Linux has", present=sys.platform == "linux")
    first = asleep()
    time.sleep(0.02)
    second = asleep()
    assert first is not None
    assert second is not None
    assert abs(second - first) < 1.0
