"""What a run gets, and what becomes of runs under way when that is lowered."""

from __future__ import annotations

import gc
import threading
from typing import TYPE_CHECKING, Any

import pytest
from support.core import in_loop, settle
from support.ruling import use_rules

import hangup
from hangup import config
from hangup.config import Mode, OnDisconnect, Settings
from hangup.core import admission, registry, rollout
from hangup.core.policy import Decision
from hangup.core.rollout import Place
from hangup.core.rules import place_of
from hangup.core.scope import RunScope
from hangup.errors import DeadlineExceeded, RunCancelled, Stop
from hangup.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hangup.core.run import Run


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    before = config.use(Settings())
    yield
    rollout.reset()
    rollout.watch_with(None)
    config.use(before)


ENFORCE: dict[str, Any] = {"mode": "enforce"}
OBSERVE: dict[str, Any] = {"mode": "observe"}
ANYWHERE = Place(("/chat",), Mode.OBSERVE)

# Opening


@pytest.mark.parametrize(
    ("code", "rule", "ceiling", "unruled", "expected"),
    [
        (None, None, None, "enforce", "enforce"),
        (None, None, None, "observe", "observe"),
        (None, None, "enforce", "observe", "enforce"),
        (None, None, "refuse", "observe", "refuse"),
        (None, "enforce", None, "observe", "enforce"),
        (None, "enforce", "observe", "observe", "observe"),
        (None, "observe", "enforce", "enforce", "observe"),
        ("enforce", "observe", None, "enforce", "observe"),
        ("enforce", None, "observe", "enforce", "observe"),
        ("observe", "enforce", "enforce", "enforce", "observe"),
        ("refuse", "enforce", None, "enforce", "refuse"),
    ],
)
def test_the_least_of_code_rule_and_ceiling_wins(
    code: str | None, rule: str | None, ceiling: str | None, unruled: str, expected: str
) -> None:
    config.use(Settings(mode=None if ceiling is None else Mode(ceiling)))
    if rule is not None:
        use_rules({"route": "/chat", "mode": rule})
    with RunScope(mode=code, place=Place(("/chat",), Mode(unruled))) as run:
        assert run.mode == expected


def test_a_rule_gives_the_outermost_run_its_budget_and_its_grace() -> None:
    rule = {"budget": 7, "on_disconnect": "grace", "grace": 3, **ENFORCE}
    use_rules({"name": "re*", "tenant": "acme", **rule})
    with hangup.run(60, name="research", tenant="acme") as run:
        assert 6 < run.remaining() <= 7
        assert run.absence.on_disconnect is OnDisconnect.GRACE
        assert run.absence.grace == 3
        with hangup.run(2, name="research", on_disconnect="finish") as inner:
            assert inner.remaining() <= 2
            assert inner.absence.on_disconnect is OnDisconnect.FINISH
    with hangup.run(60, name="research") as run:
        assert run.remaining() > 50
    use_rules(default={"budget": "none"})
    with hangup.run(60) as run:
        assert not run.deadline.is_set


def test_a_child_is_under_the_rules_by_its_own_name() -> None:
    use_rules({"name": "inner", **OBSERVE})
    with hangup.run(name="outer") as run:
        assert run.mode is Mode.ENFORCE
        with hangup.run(name="inner") as inner:
            assert inner.mode is Mode.OBSERVE
            with hangup.run(name="innermost") as innermost:
                assert innermost.mode is Mode.OBSERVE


def test_a_server_run_that_nobody_named_is_known_by_its_path() -> None:
    use_rules({"name": "/chat", **ENFORCE}, {"name": "run", "mode": "refuse"})
    with RunScope(place=ANYWHERE) as run:
        assert run.mode is Mode.ENFORCE
    with RunScope(place=Place(("/x",), Mode.OBSERVE)) as run:
        assert run.mode is Mode.OBSERVE
    with RunScope() as run:
        assert run.mode is Mode.REFUSE


def test_the_share_is_by_the_token_and_a_child_is_of_its_roots() -> None:
    use_rules(default={"share": 50, **ENFORCE})
    modes = set()
    for number in range(32):
        token = f"{number:032x}"
        expected = Mode.ENFORCE if place_of(token) < 50 else Mode.OBSERVE
        with RunScope(token=token) as run, hangup.run() as inner:
            assert (run.id, run.mode, inner.mode) == (token, expected, expected)
        modes.add(expected)
    assert modes == {Mode.ENFORCE, Mode.OBSERVE}
    with hangup.run() as run:
        assert run.mode is (Mode.ENFORCE if place_of(run.id) < 50 else Mode.OBSERVE)


# Lowering


def test_an_edit_lowers_the_runs_under_way_and_raises_none(clock: FakeClock) -> None:
    use_rules(default=ENFORCE)
    with RunScope(5, clock=clock) as run, hangup.run(3) as inner:
        use_rules(default=OBSERVE)
        assert (run.mode, inner.mode) == (Mode.OBSERVE, Mode.OBSERVE)
        use_rules(default=ENFORCE)
        assert (run.mode, inner.mode) == (Mode.OBSERVE, Mode.OBSERVE)
        clock.advance(10)
        assert clock.pending == 0  # the deadline's timer is gone, not spinning
        assert admission.admit(inner, "inference") is None
        assert run.abandonment is None
    assert run.delivered_at is not None
    with RunScope(5, clock=clock) as run:
        assert run.mode is Mode.ENFORCE


def test_observe_under_a_ceiling_beats_enforce_in_code(clock: FakeClock) -> None:
    with RunScope(5, mode="enforce", clock=clock) as run:
        config.use(Settings(mode=Mode.OBSERVE))
        rollout.lower()
        assert run.mode is Mode.OBSERVE
        clock.advance(6)
        assert admission.ask(run).decision is Decision.WOULD_REFUSE
        with RunScope(1, mode="enforce") as inner:
            assert inner.mode is Mode.OBSERVE


def test_off_lowers_runs_under_way_to_observe_so_that_they_are_measured() -> None:
    with hangup.run() as run:
        use_rules(default={"mode": "off"})
        assert run.mode is Mode.OBSERVE
        with hangup.run() as inner:
            assert inner.mode is Mode.OFF


def test_a_latent_run_follows_when_it_begins_to_spend(clock: FakeClock) -> None:
    with RunScope(5, latent=True, server=True, place=ANYWHERE, mode="enforce") as gone:
        assert gone.mode is Mode.OBSERVE
    use_rules(default=ENFORCE)
    with RunScope(5, clock=clock, latent=True, server=True, place=ANYWHERE) as run:
        use_rules(default=OBSERVE)
        assert run.mode is Mode.ENFORCE
        run.begin_spending()
        assert str(run.mode) == "observe"
        assert clock.pending == 0
        run.deliver()


def test_a_name_found_late_may_lower_the_run() -> None:
    use_rules({"name": "/chat/{id}", **OBSERVE}, default=ENFORCE)
    place = Place(("/c/1",), Mode.OBSERVE)
    with RunScope(latent=True, server=True, place=place) as run:
        assert run.mode is Mode.ENFORCE
        run.name = "/chat/{id}"
        run.begin_spending()
        assert str(run.mode) == "observe"
        run.deliver()


def test_a_rule_that_is_deleted_takes_its_mode_along() -> None:
    use_rules({"route": "/chat", **ENFORCE})
    with RunScope(place=ANYWHERE) as run, RunScope(token="0" * 32) as other:
        assert run.mode is Mode.ENFORCE
        use_rules()
        # Nobody asks for anything any more; but code did, inside.
        assert (run.mode, other.mode) == (Mode.OBSERVE, Mode.ENFORCE)
        use_rules({"route": "/chat", **OBSERVE})
        assert (run.mode, other.mode) == (Mode.OBSERVE, Mode.OBSERVE)
    use_rules()
    with RunScope() as run:
        use_rules({"route": "/else", **OBSERVE})
        assert run.mode is Mode.ENFORCE


@in_loop
async def test_a_stop_that_has_begun_ends_as_it_began() -> None:
    clock = FakeClock()
    use_rules(default=ENFORCE)
    runs: list[Run] = []
    with pytest.raises(DeadlineExceeded):
        async with RunScope(5, clock=clock) as run:
            runs.append(run)
            clock.advance(6)
            use_rules(default=OBSERVE)
            assert run.mode is Mode.ENFORCE
            refused = admission.admit(run, "inference")
            assert isinstance(refused, Stop)
            raise refused
    await settle()
    [run] = runs
    assert run.cause == "deadline"
    # Closed: what is left of it is let go.
    assert run.mode is Mode.OBSERVE
    assert admission.ask(run).decision is Decision.WOULD_REFUSE


def test_leftovers_of_closed_runs_are_let_go(clock: FakeClock) -> None:
    with pytest.raises(RunCancelled), RunScope(clock=clock) as run:
        run.cancel("superseded")
        run.check()
    assert admission.ask(run).decision is Decision.REFUSE
    assert run in registry.leftover_runs()
    use_rules(default=OBSERVE)
    assert admission.ask(run).decision is Decision.WOULD_REFUSE


def test_leftovers_are_held_weakly(clock: FakeClock) -> None:
    with pytest.raises(RunCancelled), RunScope(clock=clock) as run:
        run.cancel("superseded")
        run.check()
    token = run.id
    del run
    gc.collect()
    assert token not in {run.id for run in registry.leftover_runs()}


def test_a_stop_becomes_an_error_whatever_the_mode_has_become() -> None:
    with pytest.raises(RunCancelled), RunScope() as run:
        run.cancel("superseded")
        run.mode = Mode.OBSERVE
        raise Stop(run.id, run.name, "superseded")


def test_a_lowered_run_is_told_of_once() -> None:
    class Told(registry.RunObserver):
        def __init__(self) -> None:
            self.runs: list[Run] = []

        def lowered(self, run: Run) -> None:
            self.runs.append(run)

    told = Told()
    registry.add_observer(told)
    try:
        with hangup.run() as run:
            for _ in range(2):
                use_rules(default=OBSERVE)
    finally:
        registry.remove_observer(told)
    assert told.runs == [run]


def test_lowering_races_with_stopping_and_no_stop_escapes() -> None:
    """Either the run is stopped, with an ordinary error, or it was lowered."""
    stopped, lowered = 0, 0
    for _ in range(50):
        use_rules(default=ENFORCE)
        start = threading.Barrier(2)

        def edit(start: threading.Barrier = start) -> None:
            start.wait()
            use_rules(default=OBSERVE)

        thread = threading.Thread(target=edit)
        thread.start()
        try:
            with hangup.run(0) as run:
                start.wait()
                run.check()
                run.check()
        except DeadlineExceeded:
            stopped += 1
        else:
            lowered += 1
        thread.join()
        assert run.mode is Mode.OBSERVE
    assert stopped + lowered == 50


# The brake


def test_the_brake_lowers_everything_until_it_is_released() -> None:
    use_rules(default=ENFORCE)
    with hangup.run() as run:
        assert rollout.brake()
        assert not rollout.brake()
        assert run.mode is Mode.OBSERVE
    with hangup.run(mode="enforce") as run:
        assert run.mode is Mode.OBSERVE
    assert hangup.release_brake()
    assert not hangup.release_brake()
    with hangup.run() as run:
        assert run.mode is Mode.ENFORCE


def test_new_rules_release_the_brake() -> None:
    rollout.brake()
    use_rules(default=ENFORCE)
    assert not rollout.braked()
