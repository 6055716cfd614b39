"""A deadline is one absolute instant, and a wrong budget is named where it is given."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hangup.core.clock import SYSTEM_CLOCK
from hangup.core.deadline import Deadline, check_budget
from hangup.errors import ConfigError
from hangup.testing import FakeClock


def test_it_is_an_instant_and_not_a_duration() -> None:
    clock = FakeClock()
    deadline = Deadline.after(10.0, clock)
    assert deadline.at == clock.monotonic() + 10.0
    clock.advance(4.0)
    assert deadline.remaining() == 6.0
    clock.advance(10.0)
    assert deadline.remaining() == -4.0


def test_it_has_come_at_the_instant_itself() -> None:
    clock = FakeClock()
    deadline = Deadline.after(10.0, clock)
    clock.advance(9.5)
    assert not deadline.expired()
    clock.advance(0.5)
    assert deadline.expired()


def test_no_budget_is_no_deadline() -> None:
    clock = FakeClock()
    deadline = Deadline.after(None, clock)
    assert not deadline.is_set
    assert deadline.remaining() == math.inf
    assert not deadline.expired()
    assert not Deadline().is_set
    assert Deadline().clock is SYSTEM_CLOCK


def test_a_budget_of_zero_has_passed_at_once() -> None:
    deadline = Deadline.after(0, FakeClock())
    assert deadline.is_set
    assert deadline.expired()


def test_it_is_stamped_in_unix_seconds_of_the_present_wall_clock() -> None:
    clock = FakeClock(wall=1_000.0)
    deadline = Deadline.after(30.0, clock)
    assert deadline.unix() == 1_030.0
    clock.set_wall(2_000.0)
    assert deadline.unix() == 2_030.0


def test_it_cannot_be_changed() -> None:
    deadline = Deadline.after(1.0, FakeClock())
    with pytest.raises(dataclasses.FrozenInstanceError):
        deadline.at = 0.0  # type: ignore[misc]


instants = st.floats(0.0, 1e9) | st.just(math.inf)


@given(instants, instants)
def test_the_tighter_of_two_is_the_earlier(one: float, other: float) -> None:
    tightened = Deadline(one).tightened(Deadline(other))
    assert tightened.at == min(one, other)


@pytest.mark.parametrize("wrong", [-1, -0.001, math.nan, -math.inf, "soon", [], {}])
def test_a_budget_that_is_no_time_is_refused_by_name(wrong: Any) -> None:
    with pytest.raises(ConfigError) as refused:
        Deadline.after(wrong, FakeClock())
    assert refused.value.name == "budget"
    assert str(refused.value).startswith(f"budget={wrong!r} cannot be used: give ")
    assert isinstance(refused.value, ValueError)


def test_the_setting_a_wrong_budget_was_given_for_is_named() -> None:
    with pytest.raises(ConfigError, match="route budget=-1 cannot be used"):
        check_budget(-1, setting="route budget")


def test_a_budget_may_be_a_number_in_text() -> None:
    assert check_budget("2.5") == 2.5  # type: ignore[arg-type]
    assert check_budget(None) == math.inf
