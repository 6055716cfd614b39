from __future__ import annotations

import gc
import time
from typing import TYPE_CHECKING

import pytest

import hangup
from hangup.bus.base import Claim, Holder
from hangup.bus.live import Live, row_of
from hangup.bus.messages import key_name
from hangup.core import registry, remote
from hangup.core.cause import Cause
from hangup.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Iterator

ID = "ab" * 16


@pytest.fixture
def live() -> Iterator[Live]:
    live = Live()
    registry.add_observer(live)
    yield live
    registry.remove_observer(live)


def claim(live: Live) -> Claim:
    (claim,) = live.take_claims(round)
    return claim


def test_a_run_is_found_while_it_lives(live: Live) -> None:
    with hangup.run() as run:
        assert live.holding(run.id) == [run]
        with hangup.run():
            assert live.holding(run.id) == [run], "a child is in its root"
            assert live.roots() == [run]
    assert live.holding(run.id) == []
    assert live.roots() == []


def test_a_process_that_calls_itself_holds_a_run_twice(live: Live) -> None:
    with hangup.run(token=ID) as outer:
        with hangup.detached(), hangup.run(token=ID, joined=True) as inner:
            assert live.holding(ID) == [outer, inner]
            assert live.roots("ab") == [outer, inner]
        assert live.holding(ID) == [outer]


def test_the_second_is_still_found_when_the_first_has_gone(live: Live) -> None:
    first, second = hangup.run(token=ID), hangup.run(token=ID)
    first.__enter__()
    first.step_out()
    with second as run:
        first.__exit__(None, None, None)
        assert live.holding(ID) == [run]
    assert live.holding(ID) == []


def test_what_is_dropped_is_forgotten(live: Live) -> None:
    with hangup.run(supersede_key="k"):
        pass
    scope = hangup.run(supersede_key="gone")
    run = scope.__enter__()
    scope.step_out()
    key = key_name("gone")
    assert [one.key for one in live.take_claims(round, all_of_them=True)] == [key]
    del run, scope
    gc.collect()
    assert live.roots() == []
    assert live.take_claims(round, all_of_them=True) == []
    assert live._held == {}


def test_only_a_run_from_elsewhere_has_to_be_asked_about(live: Live) -> None:
    told: list[str] = []
    live.on_change = lambda: told.append("changed")
    with hangup.run():
        assert told.pop() == "changed", "the first run wakes who sleeps"
    with hangup.run():
        assert (live.take_unread(), told) == ([], [])
    with hangup.run(token=ID, joined=True):
        assert told == ["changed"]
        assert live.take_unread() == [ID]
        assert live.take_unread() == []


def test_a_latent_run_is_nobodys_business(live: Live) -> None:
    with hangup.run(token=ID, joined=True, latent=True) as run:
        assert live.roots() == []
        run.begin_spending()
        assert live.take_unread() == [ID]
        assert live.roots() == [run]


def test_a_claim_tells_since_when_the_key_is_held(live: Live) -> None:
    before = time.monotonic()
    with hangup.run(supersede_key="k") as run:
        after = time.monotonic()
        (mine,) = live.take_claims(lambda at: round(at * 1_000_000))
        assert (mine.key, mine.run_id) == (key_name("k"), run.id)
        assert before <= mine.rank / 1_000_000 <= after
        assert live.take_claims(round) == []
        live.claimed([mine], [Holder(mine.rank, run.id)])
        assert live.take_claims(round, all_of_them=True) == [mine], "it stays"


def test_who_is_not_the_newest_is_superseded(live: Live) -> None:
    with (
        pytest.raises(hangup.RunCancelled) as caught,
        hangup.run(supersede_key="k") as run,
    ):
        live.claimed([claim(live)], [Holder(5, "another")])
        assert run.cause is Cause.SUPERSEDED
        run.check()
    assert "another process holds 'k'" in caught.value.detail


def test_a_newer_one_that_is_heard_of_supersedes(live: Live) -> None:
    with pytest.raises(hangup.RunCancelled), hangup.run(supersede_key="k") as run:
        live.claimed([claim(live)], [Holder(5, run.id)])
        live.heard(key_name("other"), Holder(6, "another"))
        live.heard(key_name("k"), Holder(4, "an older one"))
        live.heard(key_name("k"), Holder(9, run.id))
        assert run.cause is None
        live.heard(key_name("k"), Holder(6, "another"))
        run.check()


@pytest.mark.parametrize("rank", [5, 7])
def test_what_is_heard_before_the_claim_is_answered_counts(
    live: Live, rank: int
) -> None:
    """The two travel on different connections."""
    with hangup.run(supersede_key="k") as run:
        mine = claim(live)
        live.heard(mine.key, Holder(6, "another"))
        assert run.cause is None
        live.claimed([mine], [Holder(rank, run.id)])
        assert run.cause == (Cause.SUPERSEDED if rank < 6 else None)


def test_a_run_is_not_superseded_by_one_inside_it(live: Live) -> None:
    with hangup.run(supersede_key="k") as outer:
        with hangup.run(supersede_key="k"):
            assert claim(live).run_id == outer.id
        assert [one.key for one in live.take_claims(round, all_of_them=True)]


def test_in_observe_mode_a_newer_run_stops_nothing(live: Live) -> None:
    with hangup.run(supersede_key="k", mode="observe") as run:
        live.claimed([claim(live)], [Holder(5, "another")])
        assert run.cause is None


def test_the_key_is_handed_to_the_newer_run_of_this_process(live: Live) -> None:
    with hangup.run(supersede_key="k", mode="observe") as older, hangup.detached():
        live.claimed([claim(live)], [Holder(5, older.id)])
        with hangup.run(supersede_key="k") as newer:
            assert claim(live).run_id == newer.id
    assert live._held == {}


def test_a_row_says_what_a_run_is_doing(live: Live) -> None:
    clock = FakeClock()
    remote.count_tokens_with(lambda _run: 12)
    try:
        with hangup.run(10, name="r", tenant="acme", clock=clock) as run:
            clock.advance(4)
            assert row_of(run) == (
                *(run.id, "r", "acme", 4.0, 6.0, 12),
                *("running", "enforce", None, False),
            )
    finally:
        remote.count_tokens_with(None)
    with hangup.run(clock=clock, mode="observe") as run:
        run.cancel("killed")
        row = row_of(run)
    assert (row.left, row.tokens, row.state) == (None, None, "stopping")
    assert (row.mode, row.cause) == ("observe", "killed")
