"""A caller who left under grace is gone only if nobody comes back in time."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest
from support.core import in_loop, opened, settle, witness

import hangup
from hangup import config
from hangup.core.cause import Cause
from hangup.core.scope import RunScope
from hangup.errors import ConfigError, RunCancelled
from hangup.testing import FakeClock

if TYPE_CHECKING:
    from hangup.core.run import Run


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def waiting(clock: FakeClock, **settings: Any) -> Run:
    """A run that waits ten seconds for a caller who left."""
    terms: dict[str, Any] = {"on_disconnect": "grace", "grace": 10.0, "server": True}
    return opened(RunScope(clock=clock, **(terms | settings)))


def t0(run: Run) -> float:
    assert run.abandonment is not None
    return run.abandonment.at


def test_leaving_abandons_a_run_unless_told_otherwise(clock: FakeClock) -> None:
    run = opened(RunScope(clock=clock))
    run.leave()
    assert (run.cause, run.caller) == (Cause.DISCONNECT, "gone")
    assert not run.reattach()


def test_nothing_is_decided_while_the_grace_lasts(clock: FakeClock) -> None:
    run = waiting(clock)
    run.leave()
    clock.advance(9.999)
    run.check()
    assert (run.cause, run.caller, run.state) == (None, "gone", "running")


def test_nobody_back_in_time_means_gone_when_they_left(clock: FakeClock) -> None:
    with witness() as seen:
        run = waiting(clock)
        clock.advance(1)
        left = clock.monotonic()
        run.leave()
        assert seen.of("abandoned") == []
        clock.advance(10)
    assert seen.of("abandoned") == [("abandoned", run.name, "disconnect")]
    assert t0(run) == left
    assert not run.reattach()
    assert run.caller == "gone"


def test_who_comes_back_in_time_never_left(clock: FakeClock) -> None:
    run = waiting(clock)
    run.leave()
    clock.advance(9.999)
    assert run.reattach()
    assert run.caller == "connected"
    clock.advance(1_000)
    assert run.cause is None
    assert clock.pending == 0
    assert run.deliver()


def test_who_leaves_again_has_the_whole_grace_again(clock: FakeClock) -> None:
    run = waiting(clock)
    run.leave()
    clock.advance(6)
    assert run.reattach()
    clock.advance(6)
    left = clock.monotonic()
    run.leave()
    clock.advance(9)
    assert run.cause is None
    clock.advance(1)
    assert t0(run) == left


def test_leaving_twice_is_leaving_once(clock: FakeClock) -> None:
    run = waiting(clock)
    left = clock.monotonic()
    run.leave()
    clock.advance(6)
    run.leave()
    clock.advance(4)
    assert t0(run) == left


def test_a_leave_noticed_late_counts_from_when_it_was(clock: FakeClock) -> None:
    run = waiting(clock)
    clock.advance(20)
    left = clock.monotonic() - 8
    run.leave(at=left)
    clock.advance(1)
    assert run.cause is None
    clock.advance(1)
    assert t0(run) == left
    longer_ago = waiting(clock)
    clock.advance(30)
    longer_ago.leave(at=clock.monotonic() - 20)
    assert longer_ago.cause is Cause.DISCONNECT


def test_coming_back_to_a_caller_who_never_left_is_nothing(clock: FakeClock) -> None:
    run = waiting(clock)
    assert run.reattach()
    assert run.cause is None


def test_a_stored_result_makes_leaving_nothing(clock: FakeClock) -> None:
    before = waiting(clock)
    assert before.deliver()
    before.leave()
    during = waiting(clock)
    during.leave()
    clock.advance(5)
    assert during.deliver()
    clock.advance(100)
    assert (before.state, during.state) == ("delivered", "delivered")
    assert during.caller == "gone"
    assert clock.pending == 0
    assert not during.reattach()


def test_a_result_stored_after_the_grace_comes_too_late(clock: FakeClock) -> None:
    class Late(FakeClock):
        """A loop so busy that its timers do not fire."""

        def call_at(self, when: float, callback: Any) -> Any:
            return super().call_at(when + 1_000, callback)

    late = Late()
    left = late.monotonic()
    runs = [waiting(late) for _ in range(4)]
    for run in runs:
        run.leave()
    late.advance(11)
    assert not runs[0].deliver()
    assert not runs[1].reattach()
    assert not runs[2].cancel("killed")
    assert runs[3].cause is Cause.DISCONNECT
    assert {t0(run) for run in runs} == {left}
    assert {run.cause for run in runs} == {Cause.DISCONNECT}


@pytest.mark.parametrize(
    ("budget", "cause", "at"), [(15, "disconnect", 3), (12, "deadline", 12)]
)
def test_of_grace_and_deadline_the_first_to_pass_decides(
    clock: FakeClock, budget: float, cause: str, at: float
) -> None:
    run = waiting(clock, budget=budget)
    clock.advance(3)
    run.leave()
    clock.advance(100)
    assert run.cause == cause
    assert t0(run) == run.started_at + at


def test_both_noticed_late_are_told_in_the_order_they_passed() -> None:
    class Deaf(FakeClock):
        def call_at(self, when: float, callback: Any) -> Any:
            return super().call_at(when + 1_000, callback)

    clock = Deaf()
    run = waiting(clock, budget=15)
    run.leave()
    clock.advance(100)
    assert run.cause is Cause.DISCONNECT
    assert t0(run) == run.started_at


def test_another_cause_in_the_grace_counts_from_its_own_moment(
    clock: FakeClock,
) -> None:
    run = waiting(clock)
    run.leave()
    clock.advance(4)
    assert run.cancel("killed")
    assert t0(run) == run.started_at + 4
    assert run.caller == "gone"
    assert run.absence._timer is None
    assert not run.reattach()


def test_finish_records_that_the_caller_left_and_nothing_else(
    clock: FakeClock,
) -> None:
    run = waiting(clock, on_disconnect="finish")
    run.leave()
    clock.advance(1_000)
    run.check()
    assert (run.cause, run.caller) == (None, "gone")
    assert run.deliver()
    assert run.caller == "gone"


def test_finish_does_not_outlive_the_deadline(clock: FakeClock) -> None:
    run = waiting(clock, on_disconnect="finish", budget=5)
    run.leave()
    clock.advance(6)
    assert run.cause is Cause.DEADLINE


def test_a_child_speaks_for_the_whole_run(clock: FakeClock) -> None:
    scope = RunScope(clock=clock, on_disconnect="grace", grace=10)
    with scope as run, RunScope() as child:
        child.leave()
        clock.advance(5)
        assert run.absence.away
        assert child.reattach()
        assert not run.absence.away
    assert run.state == "delivered"


@pytest.mark.parametrize(
    ("leave", "back", "meant", "state"),
    [
        (True, False, "grace", "abandoned"),
        (True, True, "grace", "delivered"),
        (True, False, "finish", "delivered"),
        (False, False, "grace", "delivered"),
    ],
)
def test_the_end_of_the_body_reaches_whoever_is_there(
    clock: FakeClock, *, leave: bool, back: bool, meant: str, state: str
) -> None:
    with RunScope(clock=clock, on_disconnect=meant, grace=10) as run:
        clock.advance(1)
        if leave:
            run.leave()
        clock.advance(1)
        if back:
            assert run.reattach()
    assert run.state == state
    assert not run.reattach()
    if state == "abandoned":
        assert run.cause is Cause.DISCONNECT
        assert t0(run) == run.started_at + 1


def test_a_failure_while_the_caller_is_away_is_a_failure(clock: FakeClock) -> None:
    with (
        pytest.raises(ZeroDivisionError),
        RunScope(clock=clock, on_disconnect="grace", grace=10) as run,
    ):
        run.leave()
        raise ZeroDivisionError
    assert run.cause is Cause.FAILED


@in_loop
async def test_the_end_of_the_grace_stops_the_run() -> None:
    clock = FakeClock()
    with pytest.raises(RunCancelled):
        async with RunScope(clock=clock, on_disconnect="grace", grace=10) as run:
            run.leave()
            loop = asyncio.get_running_loop()
            loop.call_soon(clock.advance, 10)
            await asyncio.Event().wait()
    await settle()
    assert run.cause is Cause.DISCONNECT


# A latent run


def test_a_latent_run_remembers_that_its_caller_left(clock: FakeClock) -> None:
    run = waiting(clock, latent=True)
    clock.advance(1)
    left = clock.monotonic()
    run.leave()
    clock.advance(4)
    assert (run.cause, run.caller) == (None, "unknown")
    run.begin_spending()
    assert run.caller == "gone"
    clock.advance(6)
    assert t0(run) == left


def test_a_latent_run_whose_grace_passed_is_abandoned_when_it_spends(
    clock: FakeClock,
) -> None:
    run = waiting(clock, latent=True)
    run.leave()
    clock.advance(60)
    assert run.cause is None
    run.begin_spending()
    assert run.abandonment is not None
    assert run.abandonment.cause is Cause.DISCONNECT
    assert t0(run) == run.started_at


def test_a_latent_run_that_never_spends_is_nobodys_business(clock: FakeClock) -> None:
    with (
        witness() as seen,
        RunScope(
            clock=clock, latent=True, server=True, on_disconnect="grace", grace=1
        ) as run,
    ):
        run.leave()
        clock.advance(60)
    assert seen.events == []
    assert run.cause is None


# Finding it


def test_a_run_is_found_by_its_id_until_it_is_left(clock: FakeClock) -> None:
    assert hangup.find_run("ab" * 16) is None
    with RunScope(clock=clock) as run, RunScope() as child:
        assert child.id == run.id
        assert hangup.find_run(run.id) is run
    assert hangup.find_run(run.id) is None


def test_of_two_runs_with_one_id_the_one_somebody_waits_for_is_found() -> None:
    first = opened(RunScope(token="cd" * 16, joined=True))
    second = opened(RunScope(token="cd" * 16))
    third = opened(RunScope(token="cd" * 16, joined=True))
    assert hangup.find_run("cd" * 16) is second
    assert first.id == third.id


# Threads


def test_of_all_who_come_back_and_the_end_of_the_grace_one_side_wins() -> None:
    for _ in range(50):
        clock = FakeClock()
        run = waiting(clock)
        run.leave()
        clock.advance(9.5)
        begin = threading.Barrier(5)
        back: list[bool] = []

        def come(
            run: Run = run,
            begin: threading.Barrier = begin,
            back: list[bool] = back,
        ) -> None:
            begin.wait()
            back.append(run.reattach())

        threads = [threading.Thread(target=come) for _ in range(4)]
        for thread in threads:
            thread.start()
        begin.wait()
        clock.advance(1)
        for thread in threads:
            thread.join()
        assert any(back) == (run.cause is None)


# Settings


def test_the_settings_are_checked_where_they_are_given() -> None:
    with pytest.raises(ConfigError, match=r"on_disconnect='wait'.*grace"):
        RunScope(on_disconnect="wait")
    with pytest.raises(ConfigError, match=r"grace=-1"):
        RunScope(grace=-1)


def test_the_grace_is_that_of_the_environment_unless_given() -> None:
    config.use(config.from_environment({"HANGUP_GRACE": "7"}))
    assert opened(RunScope()).absence.grace == 7
    assert opened(RunScope(grace=3)).absence.grace == 3
    assert opened(RunScope(grace=0)).absence.grace == 0
