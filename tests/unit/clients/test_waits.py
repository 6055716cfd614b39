"""A model client is told not to sleep for an attempt that cannot begin in time."""

from __future__ import annotations

import email.utils
from typing import Any

import httpx
import pytest

import hangup
from hangup.clients.waits import end_in_vain, least_wait
from hangup.errors import RunAbandoned
from hangup.testing import FakeClock

NOW = 1_750_000_000.0
SDK = {"x-stainless-retry-count": "0"}


def date(at: float) -> str:
    return email.utils.formatdate(at, usegmt=True)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "2.5"}, 2.5),
        ({"retry-after-ms": "1500"}, 1.5),
        ({"retry-after-ms": "1500", "retry-after": "7"}, 1.5),
        ({"retry-after-ms": "soon", "retry-after": "7"}, 7.0),
        ({"retry-after": date(NOW + 30)}, 30.0),
        # What says nothing that can be waited for leaves it to the back-off.
        ({"retry-after": date(NOW - 30)}, 0.375),
        ({"retry-after": "0"}, 0.375),
        ({"retry-after": "-1"}, 0.375),
        ({"retry-after": "inf"}, 0.375),
        ({"retry-after": "nan"}, 0.375),
        ({"retry-after": "tomorrow"}, 0.375),
        ({}, 0.375),
    ],
)
def test_it_waits_as_long_as_it_is_told(
    headers: dict[str, str], seconds: float
) -> None:
    assert least_wait("0", headers, NOW) == seconds


@pytest.mark.parametrize(
    ("attempt", "seconds"),
    [("0", 0.375), ("1", 0.75), ("4", 6.0), ("5", 6.0), ("9" * 9, 6.0), ("x", 0.375)],
)
def test_its_own_back_off_doubles_up_to_eight_seconds(
    attempt: str, seconds: float
) -> None:
    """Less the quarter that it may take off at random: the least it waits."""
    assert least_wait(attempt, {}, NOW) == seconds


def told(  # noqa: PLR0913  every one has a default
    budget: float | None = 5.0,
    *,
    status: int = 429,
    sends: dict[str, str] = SDK,
    answers: dict[str, str] | None = None,
    mode: str = "enforce",
    cancelled: bool = False,
    within: Any = None,
) -> str | None:
    """Return what the client is told, in a run with so much time."""
    request = httpx.Request("POST", "http://model", headers=sends)
    response = httpx.Response(status, headers=answers or {"retry-after": "7"})
    try:
        with hangup.run(budget=budget, mode=mode, clock=FakeClock(wall=NOW)) as run:
            if cancelled:
                run.cancel("disconnect")
            if within is None:
                end_in_vain(request, response, run)
            else:
                with within():
                    end_in_vain(request, response, run)
    except RunAbandoned:
        pass
    told: str | None = response.headers.get("x-should-retry")
    return told


def test_an_attempt_that_would_come_too_late_is_not_made() -> None:
    assert told(5.0) == "false"
    assert told(5.0, answers={"retry-after": date(NOW + 30)}) == "false"
    assert told(0.3, answers={"server": "x"}) == "false"
    assert told(None, cancelled=True) == "false"


def test_one_that_comes_in_time_is() -> None:
    assert told(8.0) is None
    assert told(None) is None
    assert told(0.4, answers={"server": "x"}) is None
    assert told(5.0, answers={"retry-after": "7", "x-should-retry": "true"}) == "false"
    assert told(8.0, answers={"retry-after": "7", "x-should-retry": "true"}) == "true"


def test_nobody_else_is_told_anything() -> None:
    assert told(5.0, status=200) is None
    assert told(5.0, sends={}) is None
    assert told(5.0, mode="observe") is None
    assert told(5.0, mode="refuse") is None
    assert told(5.0, within=hangup.cleanup) is None
    assert told(5.0, within=lambda: hangup.drain(budget=60)) is None
