"""The brake trips on stops that callers see, over a window, and on nothing else."""

from __future__ import annotations

from collections import deque
from typing import Self

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hangup.core import registry
from hangup.core.brake import Brake, Window
from hangup.core.scope import RunScope
from hangup.errors import RunAbandoned
from hangup.testing import FakeClock


class Watched:
    """A brake that watches the runs of the process."""

    def __init__(
        self, share: float = 20, runs: float = 50, window: float = 300
    ) -> None:
        self.trips: list[tuple[int, int]] = []
        self.clock = FakeClock()
        self.brake = Brake(
            share, runs, window, lambda hits, total: self.trips.append((hits, total))
        )

    def __enter__(self) -> Self:
        registry.add_observer(self.brake)
        return self

    def __exit__(self, *_: object) -> None:
        registry.remove_observer(self.brake)

    def deliver(self, many: int, mode: str = "enforce") -> None:
        for _ in range(many):
            with RunScope(mode=mode, clock=self.clock):
                pass

    def stop(
        self,
        many: int,
        cause: str = "deadline",
        caller: str = "connected",
        mode: str = "enforce",
    ) -> None:
        for _ in range(many):
            try:
                with RunScope(mode=mode, clock=self.clock) as run:
                    run.caller = caller
                    run.cancel(cause)
                    run.check()
            except RunAbandoned:
                pass


def test_it_trips_above_the_share_of_enough_runs() -> None:
    with Watched() as watched:
        watched.deliver(40)
        watched.stop(10)
        assert watched.trips == []  # 20 % is not more than 20 %
        watched.stop(1)
    assert watched.trips == [(11, 51)]


def test_too_few_runs_say_nothing() -> None:
    with Watched() as watched:
        watched.stop(49)
        assert watched.trips == []
        watched.stop(1)
    assert watched.trips == [(50, 50)]


@pytest.mark.parametrize(
    "kind",
    [
        {"cause": "disconnect", "caller": "gone"},
        {"cause": "killed"},
        {"cause": "superseded"},
        {"cause": "shutdown"},
        {"cause": "failed"},
        {"caller": "unknown"},
        {"caller": "gone"},
        {"mode": "observe"},
    ],
)
def test_what_was_asked_for_or_seen_by_nobody_is_no_reason(
    kind: dict[str, str],
) -> None:
    with Watched() as watched:
        watched.stop(200, **kind)
    assert watched.trips == []


def test_observed_runs_do_not_dilute_the_share() -> None:
    with Watched() as watched:
        watched.deliver(1_000, mode="observe")
        watched.deliver(40, mode="refuse")
        watched.stop(11, mode="refuse")
    assert watched.trips == [(11, 51)]


def test_children_are_not_counted() -> None:
    with Watched() as watched:
        for _ in range(60):
            with RunScope(clock=watched.clock) as run:
                run.caller = "connected"
                with pytest.raises(RunAbandoned), RunScope(0) as inner:
                    inner.check()
    assert watched.trips == []


def test_what_is_older_than_the_window_is_forgotten() -> None:
    with Watched() as watched:
        watched.stop(49)
        watched.clock.advance(301)
        watched.stop(49)
        assert watched.trips == []
        watched.clock.advance(10)
        watched.stop(1)
    assert watched.trips == [(50, 50)]


def test_a_hundred_percent_is_never() -> None:
    with Watched(share=100) as watched:
        watched.stop(200)
    assert watched.trips == []


def test_after_a_trip_it_begins_anew() -> None:
    with Watched() as watched:
        watched.stop(149)
    assert watched.trips == [(50, 50), (50, 50)]


@given(st.lists(st.tuples(st.floats(0, 40), st.booleans()), max_size=60))
def test_the_window_counts_as_a_list_of_all_events_does(
    steps: list[tuple[float, bool]],
) -> None:
    window, width = Window(60.0), 1.0
    events: deque[tuple[int, bool]] = deque()
    now = 1_000.0
    for step, hit in steps:
        now += step
        window.add(now, hit=hit)
        events.append((int(now // width), hit))
        while events[0][0] <= events[-1][0] - 60:
            events.popleft()
        assert window.total == len(events)
        assert window.hits == sum(one for _, one in events)
