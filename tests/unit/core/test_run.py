"""A run is abandoned or delivered, whichever comes first, and says so for ever."""

from __future__ import annotations

import math
import threading
from typing import TYPE_CHECKING, Any

import pytest
from support.core import in_loop, opened, settle, witness

import hangup
from hangup import config
from hangup.config import Mode, Settings
from hangup.core.cause import Cause
from hangup.core.deadline import Deadline
from hangup.core.scope import RunScope
from hangup.errors import (
    ConfigError,
    DeadlineExceeded,
    RunAbandoned,
    RunCancelled,
    Stop,
)
from hangup.testing import FakeClock

if TYPE_CHECKING:
    from hangup.core.run import Run


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def opened_run(clock: FakeClock, **settings: Any) -> Run:
    return opened(RunScope(clock=clock, **settings))


def latent_run(clock: FakeClock, **settings: Any) -> Run:
    return opened_run(clock, latent=True, server=True, **settings)


def test_a_run_says_what_it_is(clock: FakeClock) -> None:
    run = opened_run(clock, budget=30.0, name="research", tenant="acme")
    assert (run.name, run.tenant, run.mode) == ("research", "acme", Mode.ENFORCE)
    assert run.started_at == clock.monotonic()
    assert run.deadline == Deadline(clock.monotonic() + 30.0)
    assert (run.parent, run.root, run.joined, run.latent) == (None, run, False, False)
    assert (run.caller, run.state, run.cause) == ("unknown", "running", None)
    assert repr(run) == f"<Run 'research' {run.id[:8]} enforce running>"


def test_a_run_may_continue_one_of_another_process(clock: FakeClock) -> None:
    run = opened_run(clock, token="ab" * 16, joined=True)
    assert run.id == "ab" * 16
    assert run.joined


def test_time_left_runs_out(clock: FakeClock) -> None:
    run = opened_run(clock, budget=10.0)
    assert run.remaining() == 10.0
    clock.advance(12.0)
    assert run.remaining() == -2.0
    assert opened_run(clock).remaining() == math.inf


def test_the_first_cause_wins_for_ever(clock: FakeClock) -> None:
    run = opened_run(clock)
    assert run.cancel("disconnect", "left")
    assert not run.cancel("killed")
    assert not run.deliver()
    assert run.cause is Cause.DISCONNECT
    assert run.delivered_at is None
    assert run.state == "stopping"


def test_a_delivered_run_cannot_be_abandoned(clock: FakeClock) -> None:
    run = opened_run(clock, budget=10.0)
    clock.advance(4.0)
    assert run.deliver()
    assert not run.deliver()
    assert not run.cancel("disconnect")
    clock.advance(20.0)
    assert run.abandonment is None
    assert run.delivered_at == clock.monotonic() - 20.0
    assert run.state == "delivered"
    assert run.inert


def test_who_left_after_delivery_had_the_answer(clock: FakeClock) -> None:
    run, other = opened_run(clock), opened_run(clock)
    run.caller = other.caller = "connected"
    run.deliver()
    run.cancel("disconnect")
    other.cancel("disconnect")
    assert (run.caller, other.caller) == ("connected", "gone")


def test_an_unknown_cause_is_refused_by_name(clock: FakeClock) -> None:
    with pytest.raises(ConfigError, match="cause='bored' cannot be used: choose one"):
        opened_run(clock).cancel("bored")


@pytest.mark.parametrize(("ago", "expected"), [(2.0, 8.0), (99.0, 0.0), (-5.0, 10.0)])
def test_when_a_cause_took_effect_is_kept_within_the_run(
    clock: FakeClock, ago: float, expected: float
) -> None:
    run = opened_run(clock)
    clock.advance(10.0)
    run.cancel("disconnect", at=clock.monotonic() - ago)
    assert run.abandonment is not None
    assert run.abandonment.at - run.started_at == expected
    assert run.abandonment.noticed_at - run.started_at == 10.0


@pytest.mark.parametrize("late", [0.0, 5.0])
def test_past_an_enforced_deadline_everything_says_deadline_at_that_instant(
    late: float,
) -> None:
    """The timer, a disconnect, a delivery: whoever comes first finds the same."""
    for act in ("timer", "cancel", "deliver", "look"):
        clock = FakeClock()
        run = opened_run(clock, budget=10.0)
        if act != "timer":
            run._stop_timer()
        clock.advance(10.0 + late)
        if act == "cancel":
            assert not run.cancel("disconnect")
        elif act == "deliver":
            assert not run.deliver()
        if act == "timer":
            assert run.token.abandonment is not None
        assert run.abandonment is not None
        assert run.cause is Cause.DEADLINE
        assert run.abandonment.at == run.started_at + 10.0


def test_a_result_handed_over_in_time_is_delivered_though_it_is_noted_late(
    clock: FakeClock,
) -> None:
    run = opened_run(clock, budget=10.0)
    run._stop_timer()
    handed_over = clock.monotonic() + 9.5
    clock.advance(10.5)
    assert run.deliver(at=handed_over)
    assert run.delivered_at == handed_over
    assert run.abandonment is None


def test_a_timer_that_comes_a_moment_early_is_set_again(clock: FakeClock) -> None:
    """A loop's clock may run a moment ahead of ours."""
    run = opened_run(clock, budget=10.0)
    clock._timers.clear()  # it has gone off
    clock.advance(9.75)
    run._poll()
    assert run.abandonment is None
    clock.advance(0.25)
    assert run.token.abandonment is not None


@pytest.mark.parametrize("end", ["deliver", "cancel", "close"])
def test_a_run_that_is_over_leaves_no_timer(clock: FakeClock, end: str) -> None:
    run = opened_run(clock, budget=10.0)
    assert clock.pending == 1
    run.work.leave()
    getattr(run, end)()
    assert clock.pending == 0
    run.close()


@pytest.mark.parametrize("mode", ["observe", "refuse"])
def test_where_nothing_is_stopped_a_passed_deadline_abandons_nothing(
    clock: FakeClock, mode: str
) -> None:
    run = opened_run(clock, budget=10.0, mode=mode)
    clock.advance(20.0)
    assert run.abandonment is None
    assert run.deliver()
    assert run.delivered_at == run.deadline.at + 10.0


# Asking


def test_check_is_silent_while_a_call_may_start(clock: FakeClock) -> None:
    with hangup.run(budget=10.0, clock=clock) as run:
        run.check()
        run.check(needs=10.0)


def test_check_raises_the_signal_where_the_run_is_at_home(clock: FakeClock) -> None:
    with pytest.raises(RunCancelled), hangup.run(name="r", clock=clock) as run:
        run.cancel("killed", "by operator")
        with pytest.raises(Stop) as stop:
            run.check()
        assert stop.value.run_id == run.id
        assert stop.value.run_name == "r"
        assert (stop.value.cause, stop.value.detail) == ("killed", "by operator")
        raise stop.value


def test_too_little_time_stops_the_run_now_and_says_what_was_needed(
    clock: FakeClock,
) -> None:
    with (
        witness() as seen,
        pytest.raises(DeadlineExceeded) as error,
        hangup.run(budget=10.0, name="r", clock=clock) as run,
    ):
        clock.advance(9.0)
        run.check(needs=2.0)
    assert error.value.cause == "deadline"
    assert error.value.detail == "other needs 2 s, 1 s are left"
    assert error.value.elapsed == 9.0
    assert seen.of("refused") == [("refused", "r", "other", "deadline", "refuse")]


@pytest.mark.parametrize("needs", [-1.0, math.nan])
def test_what_a_check_needs_is_a_time(clock: FakeClock, needs: float) -> None:
    run = opened_run(clock)
    with pytest.raises(ConfigError, match=f"needs={needs!r} cannot be used"):
        run.check(needs)


def test_observe_never_raises_and_says_that_it_would(clock: FakeClock) -> None:
    with witness() as seen, hangup.run(budget=1, mode="observe", clock=clock) as run:
        clock.advance(2.0)
        run.check()
        run.cancel("disconnect")
        run.check(needs=5.0)
    decisions = [event[3:] for event in seen.of("refused")]
    assert decisions == [("deadline", "would_refuse"), ("disconnect", "would_refuse")]
    assert run.state == "abandoned"


def test_a_kill_acts_in_observe(clock: FakeClock) -> None:
    with (
        pytest.raises(RunCancelled, match="by operator"),
        hangup.run(mode="observe", clock=clock) as run,
    ):
        run.cancel("killed", "by operator")
        run.check()


def test_refuse_records_the_passed_deadline_when_it_refuses(clock: FakeClock) -> None:
    with (
        pytest.raises(DeadlineExceeded) as error,
        hangup.run(budget=10.0, mode="refuse", clock=clock) as run,
    ):
        clock.advance(12.0)
        assert run.abandonment is None
        run.check()
    assert error.value.elapsed == 10.0
    assert run.abandonment is not None
    assert run.abandonment.at == run.started_at + 10.0


def test_in_refuse_too_a_shared_deadline_belongs_to_the_run_that_set_it(
    clock: FakeClock,
) -> None:
    with (
        pytest.raises(DeadlineExceeded) as error,
        hangup.run(budget=10.0, mode="refuse", name="outer", clock=clock) as outer,
    ):
        with pytest.raises(Stop), hangup.run(budget=20.0, name="inner") as inner:
            clock.advance(12.0)
            inner.check()
        outer.check()
    assert error.value.run_name == "outer"
    assert error.value.elapsed == 10.0


def test_a_foreign_thread_gets_an_ordinary_error(clock: FakeClock) -> None:
    """A BaseException kills pool workers, or hangs their pools."""
    caught: list[BaseException] = []
    with hangup.run(name="r", clock=clock) as run:
        run.cancel("killed")

        def work() -> None:
            try:
                run.check()
            except BaseException as error:  # noqa: BLE001  to look at it
                caught.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join(10.0)
    assert [type(error) for error in caught] == [RunCancelled]


def test_nobody_is_refused_once_the_run_is_delivered(clock: FakeClock) -> None:
    with witness() as seen, hangup.run(budget=1.0, clock=clock) as run:
        run.deliver()
        clock.advance(5.0)
        run.check(needs=10.0)
    assert seen.of("refused") == []


def test_the_error_of_a_run_is_of_the_kind_of_its_cause(clock: FakeClock) -> None:
    for cause in Cause:
        run = opened_run(clock)
        run.cancel(cause, "why")
        expected = DeadlineExceeded if cause is Cause.DEADLINE else RunCancelled
        assert type(run.error()) is expected
        assert isinstance(run.error(), RunAbandoned)
        assert (run.error().cause, run.error().detail) == (cause.value, "why")


def test_a_run_is_plain_while_nothing_stands_in_the_way_of_any_call(
    clock: FakeClock,
) -> None:
    def plain(**settings: Any) -> Run:
        run = opened_run(clock, **settings)
        assert run.plain
        return run

    delivered, closed = plain(), plain()
    delivered.deliver()
    closed.close()
    assert not delivered.plain
    assert not closed.plain
    for picks in (Settings(needs={"tool": 1.0}), Settings(irreversible=("pay",))):
        config.use(picks)
        assert not opened_run(clock).plain


def test_a_latent_run_is_plain_from_its_first_spending_call_unless_it_is_over(
    clock: FakeClock,
) -> None:
    served, gone = latent_run(clock), latent_run(clock)
    assert not served.plain
    served.begin_spending()
    assert served.plain
    # The end comes between its leaving latent and its being announced.
    gone.on_spending(gone.close)
    gone.begin_spending()
    assert not gone.plain


# Latent


def test_a_latent_run_is_nobodys_business(clock: FakeClock) -> None:
    with witness() as seen:
        run = latent_run(clock, budget=10.0)
        assert run.state == "latent"
        assert not run.cancel("disconnect")
        clock.advance(60.0)
        assert run.abandonment is None
        assert run.cause is None
        assert clock.pending == 0
        run.deliver()
        run.close()
    assert seen.events == []


def test_a_latent_run_remembers_its_first_cause_until_it_spends(
    clock: FakeClock,
) -> None:
    run = latent_run(clock)
    clock.advance(1.0)
    run.cancel("disconnect", "left", at=clock.monotonic() - 0.5)
    clock.advance(1.0)
    run.cancel("killed")
    clock.advance(1.0)
    run.begin_spending()
    assert run.abandonment is not None
    assert (run.cause, run.abandonment.detail) == (Cause.DISCONNECT, "left")
    assert run.abandonment.at == run.started_at + 0.5
    assert run.abandonment.noticed_at == run.started_at + 3.0
    assert run.caller == "gone"


def test_a_check_counts_as_spending_and_finds_what_was_remembered(
    clock: FakeClock,
) -> None:
    with (
        witness() as seen,
        pytest.raises(RunCancelled),
        RunScope(latent=True, server=True, name="r", clock=clock) as run,
    ):
        run.cancel("disconnect")
        run.check()
    assert [event for event, *_ in seen.events][:3] == [
        "started",
        "abandoned",
        "refused",
    ]


def test_the_deadline_of_a_latent_run_counts_from_its_start(clock: FakeClock) -> None:
    run = latent_run(clock, budget=10.0)
    clock.advance(4.0)
    run.begin_spending()
    clock.advance(6.0)
    assert run.token.abandonment is not None
    assert run.token.abandonment.at == run.started_at + 10.0


def test_what_waits_for_spending_is_told_once_before_anybody_hears_of_the_run(
    clock: FakeClock,
) -> None:
    run = latent_run(clock)
    order: list[str] = []

    def name_it() -> None:
        order.append("named")
        run.name = "/chat"

    run.on_spending(name_it)
    with witness() as seen:
        run.begin_spending()
        run.begin_spending()
        run.on_spending(lambda: order.append("late"))
    assert order == ["named", "late"]
    assert seen.events == [("started", "/chat")]


def test_what_is_given_while_the_run_leaves_latent_is_told_too(
    clock: FakeClock,
) -> None:
    run = latent_run(clock)
    order: list[str] = []
    run.on_spending(lambda: run.on_spending(lambda: order.append("nested")))
    run.begin_spending()
    assert order == ["nested"]


def test_a_run_leaves_latent_once_however_many_calls_begin_at_a_time(
    clock: FakeClock,
) -> None:
    run = latent_run(clock)
    heard: list[str] = []

    def meanwhile() -> None:
        thread = threading.Thread(target=run.begin_spending)
        thread.start()
        thread.join(10.0)
        heard.append("stuck" if thread.is_alive() else "called")

    run.on_spending(meanwhile)
    with witness() as seen:
        run.begin_spending()
        run.cancel("killed")
    assert heard == ["called"]
    assert seen.events == [("started", "run"), ("abandoned", "run", "killed")]


def test_a_latent_run_that_was_delivered_stays_latent(clock: FakeClock) -> None:
    run = latent_run(clock)
    assert run.deliver()
    assert not run.deliver()
    with witness() as seen:
        run.begin_spending()
        run.check()
    assert seen.events == []
    assert run.inert


def test_a_run_opened_in_code_takes_its_server_run_out_of_latent(
    clock: FakeClock,
) -> None:
    """Whoever opens a run says that this is agent work: the caller's leaving counts."""
    with RunScope(latent=True, server=True, name="http", clock=clock) as root:
        root.cancel("disconnect")
        with (
            witness() as seen,
            pytest.raises(Stop),
            hangup.run(name="agent", clock=clock) as child,
        ):
            assert not root.latent
            assert child.cause is Cause.DISCONNECT
            child.check()
        assert [event[:2] for event in seen.events[:2]] == [
            ("started", "http"),
            ("abandoned", "http"),
        ]
        assert ("started", "agent") in seen.events


# Callbacks


def test_who_waits_for_the_end_is_told_once(clock: FakeClock) -> None:
    for end in ("abandon", "deliver"):
        run = opened_run(clock)
        told: list[str] = []
        run.on_abandon(lambda _, told=told: told.append("abandon"))  # type: ignore[misc]
        run.on_deliver(lambda _, told=told: told.append("deliver"))  # type: ignore[misc]
        run.cancel("killed") if end == "abandon" else run.deliver()
        run.cancel("killed")
        run.deliver()
        assert told == [end]


def test_who_comes_late_is_told_at_once(clock: FakeClock) -> None:
    run, other = opened_run(clock), opened_run(clock)
    run.cancel("killed")
    other.deliver()
    told: list[Run] = []
    run.on_abandon(told.append)
    other.on_deliver(told.append)
    assert told == [run, other]


def test_who_has_gone_is_not_told(clock: FakeClock) -> None:
    run, other = opened_run(clock), opened_run(clock)
    told: list[Run] = []
    for forget in (run.on_abandon(told.append), other.on_deliver(told.append)):
        forget()
        forget()
    run.cancel("killed")
    other.deliver()
    other.on_deliver(told.append)()
    assert told == [other]


# When it is over


def test_an_abandoned_run_goes_on_refusing_for_a_while_after_its_close(
    clock: FakeClock,
) -> None:
    config.use(Settings(refuse_for=60.0))
    run = opened_run(clock)
    run.cancel("killed")
    clock.advance(100.0)
    assert not run.inert
    run.close()
    assert run.state == "abandoned"
    clock.advance(60.0)
    assert not run.inert
    clock.advance(0.25)
    assert run.inert
    run.check()


def test_a_run_closed_without_a_fate_is_over_with_its_parent(clock: FakeClock) -> None:
    alone = opened_run(clock, server=True)
    alone.close()
    assert alone.inert
    with hangup.run(mode="refuse", clock=clock) as parent:
        with RunScope(server=True, clock=clock) as child:
            pass
        assert not child.inert
        parent.cancel("killed")
        with pytest.raises(Stop):
            child.check()
    assert parent.state == "abandoned"


@in_loop
async def test_only_what_has_a_deadline_of_its_own_sets_a_timer() -> None:
    clock = FakeClock()
    async with hangup.run(budget=10.0, clock=clock):
        async with hangup.run(budget=20.0, clock=clock), hangup.run(clock=clock):
            assert clock.pending == 1
        async with hangup.run(budget=5.0, clock=clock):
            assert clock.pending == 2
    assert clock.pending == 0
    await settle()
