"""Parent, child and grandchild in three processes: one clock, one stop, one bill.

Real servers, the real OpenAI client, httpx between the processes, and wall clocks that
are two minutes wrong, in opposite directions. Scenes are played at once, on one set of
processes; the tests below look at what came of each.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from support.chained import CHUNK, ROLES, SCRIPTS, Chain, spent, spent_after
from support.pulse import Pulse
from support.rig import Caller

if TYPE_CHECKING:
    from support.books import Books

    from hangup.demo.journal import CallRecord

pytestmark = [pytest.mark.timeout(120), pytest.mark.wide]

BUDGET = 4.0
SKEWS = {"child": 120.0, "grandchild": -120.0}
MODES = {
    "parent": {"observed": "observe", "inside": "observe"},
    "child": {"observed": "observe", "outside": "observe"},
    "grandchild": {"observed": "observe"},
}
"""``outside``: the parent enforces and the child observes; ``inside``: reversed."""


class Seen(NamedTuple):
    """What came of a scene.

    Attributes:
        t0: When it was stopped, or its deadline.
        calls: The model's log of it.
        over: When the work of each process had come to its end, and the cause.
        answer: What the caller got, where it waited: status, headers, body.
        metered: Tokens in the books before anything was over.
        allowance: Seconds that a busy machine may have added.
    """

    t0: float
    calls: list[CallRecord]
    over: dict[str, dict[str, Any]]
    answer: tuple[int, dict[str, str], bytes] | None = None
    metered: float = 0.0
    allowance: float = 0.0


async def _over(chain: Chain, scene: str, count: int) -> dict[str, dict[str, Any]]:
    written = await chain.wrote("over", scene=scene, count=count)
    return {one["role"]: one for one in written}


async def _deadline(chain: Chain) -> Seen:
    # What a busy machine adds: to the way of the requests, and to the stop.
    async with Pulse() as there:
        caller = await chain.asks("deadline", "long", X_Hangup_Budget=str(BUDGET))
        # To the millisecond: the request is on its way for less.
        t0 = time.monotonic() + BUDGET
        await chain.all_stream("deadline", "long")
    await asyncio.sleep(t0 - 0.05 - time.monotonic())
    async with Pulse() as stop:
        answer = await caller.answer()
        await chain.all_closed("deadline", 3)
        over = await _over(chain, "deadline", 3)
    allowance = there.allowance + stop.allowance
    return Seen(t0, chain.calls("deadline"), over, answer, allowance=allowance)


async def _walk_away(chain: Chain) -> Seen:
    caller = await chain.asks("left", "long")
    await chain.all_stream("left", "long")
    async with Pulse() as pulse:
        t0 = caller.leaves()
        await chain.all_closed("left", 3)
        over = await _over(chain, "left", 3)
    return Seen(t0, chain.calls("left"), over, allowance=pulse.allowance)


async def _killed(chain: Chain) -> Seen:
    caller = await chain.asks("killed", "long")
    await chain.all_stream("killed", "long")
    async with Pulse() as pulse:
        operator = await Caller.asks(chain.processes["parent"], "/kill/killed")
        t0 = time.monotonic()
        assert (await operator.json()) == {"stopped": True}
        answer = await caller.answer()
        await chain.all_closed("killed", 3)
        over = await _over(chain, "killed", 3)
    calls = chain.calls("killed")
    return Seen(t0, calls, over, answer, allowance=pulse.allowance)


async def _spending(chain: Chain, scene: str, calls: int) -> Seen:
    """Leave while all three are in the middle of it."""
    caller = await chain.asks(scene, "spend")
    await chain.together(scene)
    await chain.all_stream(scene, "slow")
    metered = chain.books.total("hangup.metered.tokens")
    async with Pulse() as pulse:
        t0 = caller.leaves()
        await chain.all_closed(scene, calls)
        over = await _over(chain, scene, 3)
    allowance = pulse.allowance
    return Seen(t0, chain.calls(scene), over, metered=metered, allowance=allowance)


async def _parent_dies(chain: Chain) -> Seen:
    caller = await chain.asks("dead", "long")
    await chain.all_stream("dead", "long")
    t0 = time.monotonic()
    chain.kill("parent")
    await chain.all_closed("dead", 3)
    caller.leaves()
    return Seen(t0, chain.calls("dead"), await _over(chain, "dead", 2))


STOPPED = {
    "deadline": _deadline,
    "left": _walk_away,
    "killed": _killed,
}
GOING_ON = {
    "observed": lambda chain: _spending(chain, "observed", 9),
    "outside": lambda chain: _spending(chain, "outside", 8),
    "inside": lambda chain: _spending(chain, "inside", 9),
}
LAST = {"dead": _parent_dies}
SCENES = {**STOPPED, **GOING_ON, **LAST}


class Played:
    """All scenes, after the last has come to its end."""

    def __init__(self, books: Books) -> None:
        self.books = books
        self.warnings: list[Any] = []
        self.seen: dict[str, Seen] = {}

    def tokens(self, scene: str, fate: str | None = None) -> int:
        labels = {} if fate is None else {"fate": fate}
        return int(self.books.total("hangup.tokens", name=scene, **labels))


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Played:
    where = tmp_path_factory.mktemp("chain")

    async def main() -> Played:
        async with Chain(where, skews=SKEWS, modes=MODES) as chain:
            played = Played(chain.books)
            for scenes in (STOPPED, GOING_ON, LAST):
                seen = await asyncio.gather(*(play(chain) for play in scenes.values()))
                played.seen |= dict(zip(scenes, seen, strict=True))
                # Also before the parent dies, and what it knows with it.
                await _settled(played)
            played.warnings = chain.written("warning")
            return played

    return asyncio.run(main())


async def _settled(played: Played) -> None:
    """Wait until the processes have told each other, and all of it is in the books."""

    def holds() -> bool:
        return all(
            played.tokens(scene) + CHUNK * sum(one.cut for one in seen.calls)
            >= spent(seen.calls)
            for scene, seen in played.seen.items()
            if scene in GOING_ON
        )

    # What is not there then, the tests say.
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(10):
            while not holds():  # noqa: ASYNC110  other processes write
                await asyncio.sleep(0.05)


def _seconds(scene: Seen) -> list[float]:
    """How long after T0 each model call was closed, and each process's work over."""
    closed = [one.closed - scene.t0 for one in scene.calls if one.closed is not None]
    return [*closed, *(one["at"] - scene.t0 for one in scene.over.values())]


def _within(seen: Seen) -> float:
    """How far waste may be from the log: a chunk of each call that T0 falls into.

    And what came while a busy machine kept the processes from noticing.
    """
    return 3 * (CHUNK + SCRIPTS["slow"].rate * seen.allowance)


def test_e1_absolute_deadline_versus_clock_skew(played: Played) -> None:
    """The deadline holds within 0.3 s in all three, and what is skewed is told."""
    seen = played.seen["deadline"]
    assert len(seen.calls) == 3
    assert set(seen.over) == set(ROLES)
    seconds = _seconds(seen)
    assert len(seconds) == 6
    most = 0.3 + seen.allowance
    assert all(-0.05 < late < most for late in seconds), (seconds, seen.allowance)
    assert seen.answer is not None
    status, headers, _ = seen.answer
    assert (status, headers["hangup-cause"]) == (504, "deadline")
    assert played.books.runs(name="deadline") == {("abandoned", "deadline"): 1}
    said = {one["role"]: one["said"] for one in played.warnings}
    assert set(said) == {"child", "grandchild"}
    # The parent's is right, the child's ahead by 120 s, the grandchild's behind by as
    # much: 240 s from the child's.
    apart = {
        role: float(text.split(" s apart")[0].split()[-1])
        for role, text in said.items()
    }
    assert apart["child"] == pytest.approx(-120, abs=1)
    assert apart["grandchild"] == pytest.approx(240, abs=1)


def test_a_walk_away_stops_all_three_in_under_a_second(played: Played) -> None:
    seen = played.seen["left"]
    seconds = _seconds(seen)
    assert len(seconds) == 6
    assert max(seconds) < 1.0 + seen.allowance, seconds
    assert played.books.runs(name="left") == {("abandoned", "disconnect"): 1}


def test_f6_parent_dead_children_billing_killed(played: Played) -> None:
    """(i): stopping the parent stops its children and grandchildren, and their bill."""
    seen = played.seen["killed"]
    assert max(_seconds(seen)) < 1.0 + seen.allowance
    assert len(seen.calls) == 3  # and none after it
    assert seen.answer is not None
    assert (seen.answer[0], seen.answer[1]["hangup-cause"]) == (409, "killed")
    assert played.books.runs(name="killed") == {("abandoned", "killed"): 1}
    assert set(seen.over) == set(ROLES)


def test_f6_parent_dead_children_billing_kill_9(played: Played) -> None:
    """(ii): children of a process that is gone stop by the broken connection."""
    seen = played.seen["dead"]
    assert len(seen.calls) == 3
    seconds = _seconds(seen)
    assert len(seconds) == 5  # the parent's work has no end
    assert max(seconds) < 2.0
    # Who would have counted the run is dead; what its children spent is on the bill.
    assert played.books.runs(name="dead") == {}
    theirs = [one for one in seen.calls if one.path != "parent"]
    assert played.tokens("dead") == pytest.approx(spent(theirs), abs=4 * CHUNK)


@pytest.mark.parametrize("scene", ["observed", "inside"])
def test_waste_over_three_processes_is_what_the_models_log_says(
    played: Played, scene: str
) -> None:
    """Who observes, and whom an observer calls, is cut nowhere: nine calls end."""
    seen = played.seen[scene]
    assert not any(one.cut for one in seen.calls)
    truth = spent_after(seen.calls, seen.t0)
    assert truth > 2 * CHUNK * 3  # or the next line would say little
    assert played.tokens(scene, "wasted") == pytest.approx(truth, abs=_within(seen))
    assert played.tokens(scene) == spent(seen.calls)
    assert played.tokens(scene, "delivered") == 0
    assert played.books.runs(name=scene) == {("abandoned", "disconnect"): 1}


def test_a_child_that_observes_under_a_parent_that_enforces_is_billed_all_the_same(
    played: Played,
) -> None:
    """The parent is cut, the child and what it calls go on, for nobody: that is waste.

    And the run is counted once, by who opened it.
    """
    seen = played.seen["outside"]
    assert [one.path for one in seen.calls if one.cut] == ["parent"]
    truth = spent_after(seen.calls, seen.t0)
    assert truth > 2 * CHUNK * 3
    assert played.tokens("outside", "wasted") == pytest.approx(truth, abs=_within(seen))
    # Of the one that was cut what came is estimated.
    whole = spent(seen.calls)
    assert played.tokens("outside") == pytest.approx(whole, abs=2 * CHUNK)
    assert played.books.runs(name="outside") == {("abandoned", "disconnect"): 1}


def test_usage_is_visible_while_the_run_goes_on(played: Played) -> None:
    """Of all three, when none of them is over: each has made one call by then."""
    quick = [one for one in played.seen["observed"].calls if one.model == "quick"][:3]
    assert played.seen["observed"].metered >= spent(quick)


def test_every_token_is_on_the_bill_once(played: Played) -> None:
    """Over all scenes and processes: no call of a run is counted in two of them."""
    for scene, seen in played.seen.items():
        # A call that was cut is estimated, to about a chunk.
        most = spent(seen.calls) + CHUNK * sum(one.cut for one in seen.calls)
        assert played.tokens(scene) <= most, scene
    # Nothing is left that was counted under no scene.
    everything = int(played.books.total("hangup.tokens"))
    assert everything == sum(map(played.tokens, SCENES))
