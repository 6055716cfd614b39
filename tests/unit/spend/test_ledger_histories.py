"""On every history, what is posted sums to what was used, each portion once."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from hangup.spend.fate import Fate
from hangup.spend.ledger import Ledger, Posting
from hangup.spend.pricing import Cost
from hangup.spend.usage import Usage


@dataclass(frozen=True)
class Call:
    """A call of a generated history."""

    kind: str
    model: str
    start: float
    duration: float
    first_token: float | None
    usage: Usage | None
    cost: Cost | None

    @property
    def end(self) -> float:
        return self.start + self.duration


@dataclass(frozen=True)
class Moment:
    """When the run's fate took effect, and when the ledger was told."""

    what: str
    at: float
    told: float


instants = st.integers(0, 80).map(lambda quarter: quarter / 4)
counts = st.none() | st.integers(0, 10_000)
dollars = st.integers(0, 10**9).map(lambda units: Decimal(units) / 10**10)
calls = st.builds(
    Call,
    kind=st.sampled_from(["inference", "tool"]),
    model=st.sampled_from(["a", "b"]),
    start=instants,
    duration=instants,
    first_token=st.none() | instants,
    usage=st.none() | st.builds(Usage, counts, counts),
    cost=st.none() | st.builds(Cost, dollars, dollars),
)
moments = st.builds(
    # Told at the moment or up to 20 s late, so that calls end in between; calls that
    # end after it, end after the close.
    lambda what, at, late: Moment(what, at, at + late),
    st.sampled_from(["abandon", "deliver", "close", "close at"]),
    instants,
    instants,
)


def decide(ledger: Ledger, moment: Moment) -> None:
    match moment.what:
        case "abandon":
            ledger.abandon(moment.at, "disconnect")
        case "deliver":
            ledger.deliver(moment.at)
        case "close":
            ledger.close()
        case _:
            ledger.close(moment.at)


def play(history: list[Call], told: list[Moment], capacity: int) -> list[Posting]:
    """Drive a ledger through a history in the order in which things happen."""
    posted: list[Posting] = []
    ledger = Ledger(posted.extend, capacity=capacity)
    events: list[tuple[float, int, int]] = []
    for number, call in enumerate(history):
        events.append((call.end, 1, number))
    events += [(moment.told, 2, number) for number, moment in enumerate(told)]
    for at, event, number in sorted(events):
        if event == 2:
            decide(ledger, told[number])
            continue
        call = history[number]
        began = call.start
        first = None if call.first_token is None else began + call.first_token
        what, used = (call.kind, call.model), (call.usage, call.cost)
        ledger.enter((*what, began, first, at, *used, number, None))
    ledger.close()
    for fate, total in ledger.totals().items():
        of_fate = [post for post in posted if post.fate is fate]
        assert total.input == sum(post.input for post in of_fate)
        assert total.output == sum(post.output for post in of_fate)
        assert total.calls == sum(post.calls for post in of_fate)
    return posted


def used(history: list[Call]) -> tuple[Counter[str], Decimal]:
    """Sum what the calls of a history used, as naively as possible."""
    tokens: Counter[str] = Counter()
    money = Decimal(0)
    for call in history:
        tokens["calls"] += 1
        if call.usage is not None:
            tokens["input"] += call.usage.input or 0
            tokens["output"] += call.usage.output or 0
        if call.cost is not None:
            money += call.cost.input + call.cost.output
    return tokens, money


@given(
    st.lists(calls, max_size=12),
    st.lists(moments, max_size=3),
    st.sampled_from([0, 1, 3, 512]),
)
def test_delivered_sunk_wasted_and_after_sum_to_what_was_used(
    history: list[Call], told: list[Moment], capacity: int
) -> None:
    posted = play(history, told, capacity)
    tokens, money = used(history)
    assert sum(post.input for post in posted) == tokens["input"]
    assert sum(post.output for post in posted) == tokens["output"]
    assert sum(post.calls for post in posted) == tokens["calls"]
    assert sum(post.usd for post in posted if post.usd is not None) == money
    seconds = sum(call.duration for call in history)
    assert math.isclose(sum(post.seconds for post in posted), seconds, abs_tol=1e-6)
    assert all(post.input >= 0 and post.output >= 0 for post in posted)
    assert all(post.usd is None or post.usd >= 0 for post in posted)
    fates = {post.fate for post in posted}
    assert not fates & {Fate.SUNK, Fate.WASTED} or not fates & {
        Fate.DELIVERED,
        Fate.AFTER,
    }


def expected(call: Call, moment: Moment) -> Counter[Fate]:
    """Say which fate each token of a call has, straight from the words of the rule."""
    before, after = (
        (Fate.SUNK, Fate.WASTED)
        if moment.what == "abandon"
        else (Fate.DELIVERED, Fate.AFTER)
    )
    at = math.inf if moment.what == "close" else moment.at
    usage = call.usage or Usage(0, 0)
    tokens_in, tokens_out = usage.input or 0, usage.output or 0
    if call.end <= at:
        return Counter({before: tokens_in + tokens_out})
    if call.start >= at:
        return Counter({after: tokens_in + tokens_out})
    since = call.start + (call.first_token or 0.0)
    early = 0
    if since < at:
        share = Fraction(at - since) / Fraction(call.end - since)
        early = math.floor(tokens_out * share + Fraction(1, 2))
    return Counter({before: tokens_in + early, after: tokens_out - early})


@given(st.lists(calls, max_size=12), moments, st.lists(moments, max_size=2))
def test_each_call_is_posted_once_and_split_at_the_first_moment_told(
    history: list[Call], moment: Moment, later: list[Moment]
) -> None:
    told = [moment, *(m for m in later if m.told > moment.told)]
    posted = play(history, told, 512)
    for number, call in enumerate(history):
        mine = [post for post in posted if post.span_context == number]
        assert sum(post.calls for post in mine) == 1
        got: Counter[Fate] = Counter()
        for post in mine:
            got[post.fate] += post.input + post.output
        wanted = expected(call, moment)
        for fate in Fate:
            # The rule in fractions, the ledger in floats: half a token may round
            # to either side.
            assert abs(got[fate] - wanted[fate]) <= 1


@given(st.lists(calls, min_size=1, max_size=12), instants)
def test_a_fold_divides_like_its_interval_when_t0_falls_inside(
    history: list[Call], t0: float
) -> None:
    last = max(call.end for call in history)
    posted = play(history, [Moment("abandon", t0, max(last, t0) + 1.0)], 0)
    for kind, model, priced in {(c.kind, c.model, c.cost is not None) for c in history}:
        fold = [
            call
            for call in history
            if (call.kind, call.model, call.cost is not None) == (kind, model, priced)
        ]
        start, end = min(c.start for c in fold), max(c.end for c in fold)
        whole = sum((c.usage.input or 0) for c in fold if c.usage is not None)
        mine = [
            post
            for post in posted
            if (post.kind, post.model, post.usd is not None) == (kind, model, priced)
        ]
        sunk = sum(post.input for post in mine if post.fate is Fate.SUNK)
        if end <= t0:
            assert sunk == whole
        elif start >= t0:
            assert sunk == 0
        else:
            assert abs(sunk - whole * (t0 - start) / (end - start)) <= 0.5 + 1e-6
