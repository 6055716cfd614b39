"""A run's fate reaches the processes that helped, once, and nobody waits for ever."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from support.wire import TOKEN

from hangup import config
from hangup.config import Mode
from hangup.core import registry
from hangup.core.cause import Cause
from hangup.core.scope import RunScope
from hangup.otel import notices
from hangup.otel.settlement import Settlement
from hangup.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hangup.core.run import Run
    from hangup.otel.notices import Notice, Outcome

OTHER = "f" * 32
ORIGIN = "http://subagent:8000"


class Rig:
    """One process: its settlement, the notices it sent, the books it closed."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.settlement = Settlement(self.clock)
        self.settlement.transport = lambda origin, notice: self.sent.append(
            (origin, notice)
        )
        self.sent: list[tuple[str, Notice]] = []
        self.booked: list[tuple[str, Cause | None, float]] = []

    def run(self, budget: float | None = 60.0, **options: Any) -> RunScope:
        return RunScope(budget, name="test", clock=self.clock, **options)

    def joined(self, budget: float | None = 60.0, **options: Any) -> RunScope:
        return self.run(budget, token=TOKEN, joined=True, server=True, **options)

    def settle(self, outcome: Outcome, cause: Cause | None, at: float) -> None:
        self.booked.append((outcome.value, cause, at))

    def answered(self, budget: float | None = 60.0, **options: Any) -> Run:
        """A joined run that has answered, and is held."""
        with self.joined(budget, **options) as run:
            run.deliver()
            self.settlement.hold(run, self.settle)
        return run

    def told(self) -> list[tuple[str, str, str | None]]:
        return [(origin, note.outcome.value, note.cause) for origin, note in self.sent]

    def hear(self, outcome: str, cause: str = "none", ago_ms: float = 0) -> bool:
        return self.settlement.receive([_entry(TOKEN, outcome, cause, ago_ms)])


def _entry(token: str, outcome: str, cause: str, ago_ms: float) -> dict[str, object]:
    return {"token": token, "outcome": outcome, "cause": cause, "ago_ms": ago_ms}


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig()
    registry.add_observer(rig.settlement)
    yield rig
    registry.remove_observer(rig.settlement)


# The process that opened the run


def test_every_remembered_origin_hears_of_the_delivery_once(rig: Rig) -> None:
    with rig.run() as run:
        for origin in (ORIGIN, "http://other:1", ORIGIN):
            rig.settlement.remember(run, origin)
        assert rig.sent == []
    assert rig.told() == [
        (ORIGIN, "delivered", None),
        ("http://other:1", "delivered", None),
    ]


def test_an_abandonment_is_told_with_its_cause_and_age(rig: Rig) -> None:
    with rig.run(mode=Mode.OBSERVE) as run:
        rig.settlement.remember(run, ORIGIN)
        run.cancel(Cause.DISCONNECT, at=rig.clock.monotonic())
        assert rig.told() == [(ORIGIN, "abandoned", "disconnect")]
        rig.clock.advance(1.25)
        [(_, notice)] = rig.sent
        sent = json.loads(notices.encode([notice]))
        assert sent == {
            "settlements": [_entry(run.id, "abandoned", "disconnect", 1250)]
        }
    assert len(rig.sent) == 1


def test_an_origin_learnt_of_after_the_abandonment_is_told_at_once(rig: Rig) -> None:
    with rig.run(mode=Mode.OBSERVE) as run:
        run.cancel(Cause.KILLED)
        rig.settlement.remember(run, ORIGIN)
        assert rig.told() == [(ORIGIN, "abandoned", "killed")]


def test_an_origin_learnt_of_after_the_delivery_is_told_at_once(rig: Rig) -> None:
    with rig.run() as run:
        run.deliver()
        rig.settlement.remember(run, ORIGIN)
    assert rig.told() == [(ORIGIN, "delivered", None)]


def test_a_childs_origin_hears_the_fate_of_the_whole_run(rig: Rig) -> None:
    with rig.run(mode=Mode.OBSERVE) as root:
        with rig.run() as child:
            rig.settlement.remember(child, ORIGIN)
        assert rig.sent == []
        root.cancel(Cause.SHUTDOWN)
    assert rig.told() == [(ORIGIN, "abandoned", "shutdown")]


def test_origins_are_bounded_and_forgotten_with_the_run(rig: Rig) -> None:
    with rig.run() as run:
        for number in range(100):
            rig.settlement.remember(run, f"http://host:{number}")
    assert len(rig.sent) == 64
    assert len(rig.settlement._origins) == 0


def test_without_a_transport_nothing_happens(rig: Rig) -> None:
    rig.settlement.transport = None
    with rig.run() as run:
        rig.settlement.remember(run, ORIGIN)
    assert rig.sent == []


# The process that helped


def test_a_held_run_is_booked_as_the_notice_says(rig: Rig) -> None:
    run = rig.answered()
    rig.clock.advance(3.0)
    assert (rig.settlement.held, rig.booked) == (1, [])
    assert rig.hear("abandoned", "disconnect", 500)
    assert rig.booked == [("abandoned", Cause.DISCONNECT, rig.clock.monotonic() - 0.5)]
    assert rig.settlement.held == 0
    assert run.abandonment is None  # it was answered here; only its books differ


def test_a_delivery_is_booked_at_the_end_of_the_answer_here(rig: Rig) -> None:
    run = rig.answered()
    rig.clock.advance(3.0)
    assert rig.hear("delivered")
    assert rig.booked == [("delivered", None, run.delivered_at)]


def test_a_fate_from_before_the_run_began_here_is_moved_to_its_start(rig: Rig) -> None:
    run = rig.answered()
    assert rig.hear("abandoned", "deadline", 1e9)
    assert rig.booked == [("abandoned", Cause.DEADLINE, run.started_at)]


def test_only_the_first_notice_counts(rig: Rig) -> None:
    rig.answered()
    rig.hear("delivered")
    rig.hear("abandoned", "killed")
    rig.clock.advance(1e6)
    assert [outcome for outcome, *_ in rig.booked] == ["delivered"]


def test_every_call_that_the_run_made_to_this_process_is_settled(rig: Rig) -> None:
    rig.answered()
    rig.answered()
    rig.hear("abandoned", "failed")
    assert [outcome for outcome, *_ in rig.booked] == ["abandoned", "abandoned"]


def test_a_strangers_notice_settles_nothing(rig: Rig) -> None:
    rig.answered()
    assert rig.settlement.receive([_entry(OTHER, "abandoned", "killed", 0)])
    assert rig.booked == []


@pytest.mark.parametrize(
    ("budget", "waits"), [(None, 30.0), (5.0, 30.0), (100.0, 102.0)]
)
def test_a_hold_that_nobody_ends_expires_as_delivered(
    rig: Rig, budget: float | None, waits: float
) -> None:
    run = rig.answered(budget)
    rig.clock.advance(waits - 0.01)
    assert rig.booked == []
    rig.clock.advance(0.02)
    assert rig.booked == [("delivered", None, run.delivered_at)]
    assert rig.settlement.held == 0


def test_a_hold_whose_timer_died_with_its_loop_is_found_by_the_next_notice(
    rig: Rig,
) -> None:
    rig.answered()
    rig.clock._timers.clear()
    rig.clock.advance(1e4)
    rig.settlement.receive([])
    assert len(rig.booked) == 1


def test_the_wait_is_a_setting(rig: Rig) -> None:
    config.use(config.with_keywords(config.Settings(), hold=1.0))
    rig.answered(None)
    rig.clock.advance(1.01)
    assert len(rig.booked) == 1


def test_shutting_down_books_what_is_held_as_delivered(rig: Rig) -> None:
    rig.answered()
    rig.answered()
    rig.settlement.release()
    rig.settlement.release()
    assert [outcome for outcome, *_ in rig.booked] == ["delivered", "delivered"]
    assert rig.settlement.held == 0


def test_held_runs_are_bounded_and_the_oldest_goes_first(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hangup.otel.settlement._MAX_HELD", 3)
    runs = [rig.answered() for _ in range(5)]
    assert rig.settlement.held == 3
    assert [at for *_, at in rig.booked] == [run.delivered_at for run in runs[:2]]


def test_settled_runs_leave_nothing_behind(rig: Rig) -> None:
    for _ in range(500):
        rig.answered(3_000.0)
        rig.hear("delivered")
    kept = rig.settlement
    assert (len(kept._held), len(kept._by_token)) == (0, 0)
    assert len(kept._by_expiry) <= 65
    assert rig.clock.pending == 0


def test_a_live_joined_run_is_stopped_by_the_notice(rig: Rig) -> None:
    with rig.joined(mode=Mode.OBSERVE) as run:
        rig.clock.advance(2.0)
        assert rig.hear("abandoned", "superseded", 500)
        abandonment = run.abandonment
        assert abandonment is not None
        assert abandonment.cause is Cause.SUPERSEDED
        assert abandonment.at == rig.clock.monotonic() - 0.5


def test_a_notice_never_cancels_a_run_that_was_opened_here(rig: Rig) -> None:
    with rig.run() as run:
        entry = _entry(run.id, "abandoned", "killed", 0)
        assert rig.settlement.receive([entry])
        assert run.abandonment is None


def test_a_delivery_that_overtakes_the_answer_is_kept_for_the_hold(rig: Rig) -> None:
    with rig.joined() as run:
        assert rig.hear("delivered")
        run.deliver()
        rig.settlement.hold(run, rig.settle)
    assert rig.booked == [("delivered", None, run.delivered_at)]


def test_an_abandonment_between_the_answer_and_the_hold_is_not_lost(rig: Rig) -> None:
    with rig.joined() as run:
        run.deliver()
        assert rig.hear("abandoned", "disconnect")
        rig.settlement.hold(run, rig.settle)
    assert [outcome for outcome, *_ in rig.booked] == ["abandoned"]


def test_a_latent_run_hears_of_the_abandonment_when_it_begins_to_spend(
    rig: Rig,
) -> None:
    with rig.joined(latent=True, mode=Mode.OBSERVE) as run:
        rig.hear("abandoned", "disconnect", 0)
        rig.clock.advance(1.0)
        assert run.abandonment is None
        run.begin_spending()
        abandonment = run.abandonment
        assert abandonment is not None
        assert (abandonment.cause, abandonment.at) == (
            Cause.DISCONNECT,
            rig.clock.monotonic() - 1.0,
        )


def test_notices_for_unknown_tokens_are_kept_within_bounds(rig: Rig) -> None:
    for start in range(0, 3_000, 300):
        rig.settlement.receive(
            [_entry(f"{start + n:032x}", "abandoned", "killed", 0) for n in range(300)]
        )
    assert len(rig.settlement._early_tokens) <= 1_000


def test_a_forked_child_forgets_what_its_parent_holds(rig: Rig) -> None:
    rig.answered()
    with rig.run() as run:
        rig.settlement.remember(run, ORIGIN)
        rig.settlement.reset()
    rig.settlement.release()
    rig.clock.advance(1e6)
    assert (rig.settlement.held, rig.booked, rig.sent) == (0, [], [])


# Chains


@pytest.mark.parametrize("outcome", ["delivered", "abandoned"])
def test_a_held_run_passes_its_fate_on_to_those_it_called(
    rig: Rig, outcome: str
) -> None:
    with rig.joined() as run:
        rig.settlement.remember(run, ORIGIN)
        run.deliver()
        rig.settlement.hold(run, rig.settle)
    assert rig.sent == []
    rig.hear(outcome, "killed")
    cause = "killed" if outcome == "abandoned" else None
    assert rig.told() == [(ORIGIN, outcome, cause)]


def test_a_live_joined_run_passes_its_abandonment_on(rig: Rig) -> None:
    with rig.joined(mode=Mode.OBSERVE) as run:
        rig.settlement.remember(run, ORIGIN)
        rig.hear("abandoned", "killed")
    assert rig.told() == [(ORIGIN, "abandoned", "killed")]


def test_a_joined_run_that_nobody_holds_passes_its_delivery_on(rig: Rig) -> None:
    with rig.joined() as run:
        rig.settlement.remember(run, ORIGIN)
        run.deliver()
    assert rig.told() == [(ORIGIN, "delivered", None)]
