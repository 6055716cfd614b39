"""What a run has sent and may revoke, and what a worker looks up."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from hangup.config import Mode
from hangup.core.cause import Cause
from hangup.core.scope import RunScope
from hangup.errors import RunAbandoned
from hangup.otel import board, errands, wire
from hangup.otel.board import Line
from hangup.otel.errands import Errand
from hangup.otel.ties import Ties, Watched
from hangup.testing import FakeClock

TOKEN = "0123456789abcdef" * 2
KEY = f"{TOKEN}-0000beef"


def a_run(clock: FakeClock, budget: float | None = 10.0, **options: Any) -> RunScope:
    return RunScope(budget, name="user", clock=clock, **options)


def an_errand(clock: FakeClock, left: float = 10.0) -> Errand:
    return Errand(wire.Inbound(TOKEN, left, clock.wall() + left, Mode.ENFORCE), KEY)


# What is revoked


class Revoked:
    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.ties = Ties(lambda _run, ids: self.calls.append(ids))


def test_a_stop_revokes_what_the_run_sent_once() -> None:
    seen = Revoked()
    with contextlib.suppress(RunAbandoned), a_run(FakeClock()) as run:
        for task_id in ("a", "b", "c"):
            seen.ties.add(run, task_id)
        seen.ties.done(run, "b")
        run.cancel("killed")
        run.cancel("killed")
    assert seen.calls == [["a", "c"]]


def test_a_run_that_ends_well_revokes_nothing() -> None:
    seen = Revoked()
    with a_run(FakeClock()) as run:
        seen.ties.add(run, "a")
    assert seen.calls == []


def test_the_stop_of_a_child_revokes_what_it_sent_and_nothing_else() -> None:
    seen, clock = Revoked(), FakeClock()
    with a_run(clock) as run:
        seen.ties.add(run, "outer")
        with contextlib.suppress(RunAbandoned), a_run(clock) as child:
            seen.ties.add(child, "inner")
            child.cancel("killed")
        assert seen.calls == [["inner"]]


def test_the_stop_of_a_run_revokes_what_a_child_that_is_over_sent() -> None:
    seen, clock = Revoked(), FakeClock()
    with contextlib.suppress(RunAbandoned), a_run(clock) as run:
        with a_run(clock) as child:
            seen.ties.add(child, "inner")
        run.cancel("killed")
    assert seen.calls == [["inner"]]


@pytest.mark.parametrize(
    ("cause", "revoked"), [("disconnect", []), ("killed", [["a"]])]
)
def test_in_observe_only_a_kill_revokes(cause: str, revoked: list[list[str]]) -> None:
    seen = Revoked()
    with contextlib.suppress(RunAbandoned), a_run(FakeClock(), mode="observe") as run:
        seen.ties.add(run, "a")
        run.cancel(cause)
    assert seen.calls == revoked


def test_of_very_many_tasks_the_latest_are_remembered() -> None:
    seen = Revoked()
    with contextlib.suppress(RunAbandoned), a_run(FakeClock()) as run:
        for number in range(10_010):
            seen.ties.add(run, str(number))
        run.cancel("killed")
    [ids] = seen.calls
    assert len(ids) == 10_000
    assert ids[-1] == "10009"


# What is watched


def test_a_worker_looks_up_a_run_while_it_works_and_while_its_books_are_open() -> None:
    clock = FakeClock()
    watched, errand = Watched(clock), an_errand(clock)
    assert watched.due() == []
    with errands.scope(errand, None, "ask", clock) as run:
        watched.add(run, KEY)
        soon = watched.pause
        assert watched.due() == [KEY]
        watched.apply(KEY, Line(board.OPEN, left=5.0))
        watched.apply(KEY, None)
        assert watched.due() == [KEY]
        run.deliver()
        watched.left(run, KEY)
    assert watched.pause > soon
    assert watched.due() == [KEY]
    clock.advance(3600)
    assert watched.due() == []


def test_a_worker_that_hears_of_a_stop_stops_its_run_as_of_then() -> None:
    clock = FakeClock()
    watched, errand = Watched(clock), an_errand(clock)
    with (
        contextlib.suppress(RunAbandoned),
        errands.scope(errand, None, "ask", clock) as run,
    ):
        watched.add(run, KEY)
        clock.advance(2.0)
        watched.apply(KEY, Line(board.ABANDONED, Cause.KILLED, 8.0, 0.5))
        assert run.abandonment is not None
        assert run.abandonment.cause is Cause.KILLED
        assert run.abandonment.at == pytest.approx(clock.monotonic() - 0.5)
        assert watched.due() == []
        watched.left(run, KEY)


def test_a_worker_that_hears_of_an_answer_lets_its_task_go_on() -> None:
    clock = FakeClock()
    watched, errand = Watched(clock), an_errand(clock, 1.0)
    with errands.scope(errand, None, "ask", clock) as run:
        watched.add(run, KEY)
        watched.apply(KEY, Line(board.DELIVERED))
        clock.advance(60.0)
        run.check()  # past the deadline: it is background work now
        assert run.inert
        watched.left(run, KEY)


def test_what_is_said_of_one_task_stops_its_run_and_settles_no_other() -> None:
    clock = FakeClock()
    watched, errand = Watched(clock), an_errand(clock)
    [key, one] = errand.keys("7")
    with (
        contextlib.suppress(RunAbandoned),
        errands.scope(errand, None, "ask", clock) as run,
        errands.scope(errand, None, "ask", clock) as other,
    ):
        watched.add(run, key, one)
        watched.add(other, key)
        watched.apply(one, Line(board.ABANDONED, Cause.KILLED, 8.0, 0.5))
        assert run.cause is Cause.KILLED
        assert watched.due() == [key]


def test_a_task_that_failed_is_not_looked_up_any_more() -> None:
    clock = FakeClock()
    watched, errand = Watched(clock), an_errand(clock)
    with (
        contextlib.suppress(LookupError),
        errands.scope(errand, None, "ask", clock) as run,
    ):
        watched.add(run, KEY)
        try:
            raise LookupError
        finally:
            watched.left(run, KEY)
    assert watched.due() == []


def test_of_very_many_runs_each_is_looked_up_in_its_turn() -> None:
    clock = FakeClock()
    watched = Watched(clock)
    keys = [f"{TOKEN}-{number:08x}" for number in range(1_200)]
    with a_run(clock) as run:
        for key in keys:
            watched.add(run, key)
        seen: set[str] = set()
        for _ in range(3):
            seen.update(watched.due())
    assert seen == set(keys)
