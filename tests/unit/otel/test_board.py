"""The line on a run that workers of a queue read."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hangup.core.cause import Cause
from hangup.otel import board
from hangup.otel.notices import Notice, Outcome
from hangup.testing import FakeClock

TOKEN = "0123456789abcdef" * 2
KEY = f"{TOKEN}-00000000"


def _post(clock: FakeClock, left: float) -> board.Post:
    return board.Post(KEY, left, clock.monotonic(), clock.wall())


def test_the_time_left_is_told_by_the_store_whatever_the_wall_clocks_say() -> None:
    clock = FakeClock()
    post = _post(clock, 10.0)
    ttl = post.lifetime(clock.monotonic()) - 4.0  # four seconds in the queue
    for skew in (-120.0, 0.0, 120.0):
        line = board.read(post.opened(), ttl, clock.wall() + skew)
        assert line is not None
        assert line.outcome == board.OPEN
        assert line.left == pytest.approx(6.0)


def test_without_the_stores_clock_the_wall_clock_tells() -> None:
    clock = FakeClock()
    line = board.read(_post(clock, 10.0).opened(), None, clock.wall() + 4.0)
    assert line is not None
    assert line.left == pytest.approx(6.0, abs=0.001)


def test_a_run_without_a_deadline_has_all_the_time() -> None:
    clock = FakeClock()
    post = _post(clock, math.inf)
    for ttl in (None, 5.0):
        line = board.read(post.opened(), ttl, clock.wall())
        assert line is not None
        assert line.left == math.inf


@pytest.mark.parametrize("skew", [-120.0, 0.0, 120.0])
def test_how_long_ago_it_was_abandoned_does_not_depend_on_a_wall_clock(
    skew: float,
) -> None:
    clock = FakeClock()
    post = _post(clock, 10.0)
    clock.advance(3.0)
    at = clock.monotonic()
    clock.advance(0.5)  # noticed late
    notice = Notice(TOKEN, Outcome.ABANDONED, Cause.KILLED, at, clock)
    text = post.closed(notice, clock.wall())
    ttl = post.lifetime(clock.monotonic()) - 2.0
    line = board.read(text, ttl, clock.wall() + 2.0 + skew)
    assert line is not None
    assert (line.outcome, line.cause) == (board.ABANDONED, Cause.KILLED)
    assert line.ago == pytest.approx(2.5, abs=0.001)
    assert line.left == pytest.approx(4.5, abs=0.001)


def test_a_delivered_run_says_so_without_a_cause() -> None:
    clock = FakeClock()
    post = _post(clock, 10.0)
    notice = Notice(TOKEN, Outcome.DELIVERED, None, clock.monotonic(), clock)
    line = board.read(post.closed(notice, clock.wall()).encode(), None, clock.wall())
    assert line is not None
    assert (line.outcome, line.cause) == (board.DELIVERED, None)


def test_a_line_is_never_kept_for_ever_nor_for_nothing() -> None:
    clock = FakeClock()
    timed, untimed = _post(clock, 10.0), _post(clock, math.inf)
    assert timed.lifetime(clock.monotonic()) == pytest.approx(10 + board.KEPT)
    assert math.isfinite(untimed.lifetime(clock.monotonic()))
    clock.advance(1e7)
    assert timed.lifetime(clock.monotonic()) == 1.0


@given(
    st.one_of(
        st.text(),
        st.binary(),
        st.none(),
        st.recursive(
            st.one_of(st.none(), st.booleans(), st.floats(), st.integers(), st.text()),
            lambda inner: (
                st.lists(inner) | st.dictionaries(st.sampled_from("odbac"), inner)
            ),
            max_leaves=5,
        ).map(json.dumps),
        st.fixed_dictionaries(
            {"o": st.sampled_from(["open", "delivered", "abandoned"])},
            optional={
                key: st.one_of(
                    st.none(), st.floats(), st.integers(), st.text(max_size=9)
                )
                for key in "dbac"
            },
        ).map(json.dumps),
    ),
    st.one_of(st.none(), st.floats(0, 1e9)),
)
def test_whatever_stands_there_never_raises_and_never_tells_of_the_future(
    text: object, lifetime: float | None
) -> None:
    line = board.read(text, lifetime, 1.75e9)
    assert line is None or line.ago >= 0.0
    assert line is None or (line.cause is None) is (line.outcome != board.ABANDONED)


def test_a_key_belongs_to_its_run_only() -> None:
    key = board.new_key(TOKEN)
    assert board.is_key_of(key, TOKEN)
    assert board.new_key(TOKEN) != key
    for wrong in (None, 7, "", TOKEN, f"{TOKEN}-", key + "0", key.upper(), f"{key}\n"):
        assert not board.is_key_of(wrong, TOKEN)
    assert not board.is_key_of(key, "f" * 32)
