"""What a ledger keeps of its calls, and how that becomes postings. Pure."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from hangup.spend.fate import Basis, Fate, Metering, Portion, prorate, split
from hangup.spend.pricing import Cost, add_usd, share_usd

if TYPE_CHECKING:
    from decimal import Decimal

    from hangup.spend.usage import Usage


_WORTH_MERGING = 2  # postings


class Posting(NamedTuple):
    """What a ledger posts: a portion of one call, or of several that were folded.

    Attributes:
        fate: What became of it.
        kind: The call's kind: inference, embeddings, retrieval, tool or agent.
        model: The call's model, or "".
        input: Input tokens.
        output: Output tokens.
        calls: 1 in the portion that holds the start of the call, 0 in its others; more
            where several were merged.
        seconds: Time on this side of the moment.
        basis: How the tokens are known.
        span_context: Of the call, for an exemplar; None for folded calls.
        cause: Why the run was abandoned; "none" for delivered and after.
        usd: Dollars; None where the call has no price.
    """

    fate: Fate
    kind: str
    model: str
    input: int
    output: int
    calls: int
    seconds: float
    basis: Basis
    span_context: object | None
    cause: str
    usd: Decimal | None


class Total(NamedTuple):
    """What has been posted for one fate.

    Attributes:
        input: Input tokens.
        output: Output tokens.
        calls: Calls that started under it.
        seconds: Their time.
        divided: How many of the tokens have a basis other than reported.
        unpriced: How many of the tokens have no price.
        usd: Dollars of the others; None when nothing had a price.
    """

    input: int = 0
    output: int = 0
    calls: int = 0
    seconds: float = 0.0
    divided: int = 0
    unpriced: int = 0
    usd: Decimal | None = None


class Tally:
    """Adds up postings of one fate."""

    __slots__ = ("calls", "divided", "input", "output", "seconds", "unpriced", "usd")

    def __init__(self) -> None:
        self.input: int = 0
        self.output: int = 0
        self.calls: int = 0
        self.seconds: float = 0.0
        self.divided: int = 0
        self.unpriced: int = 0
        self.usd: Decimal | None = None

    def add(self, posting: Posting) -> None:
        """Add a posting."""
        self.input += posting.input
        self.output += posting.output
        self.calls += posting.calls
        self.seconds += posting.seconds
        if posting.basis is not Basis.REPORTED:
            self.divided += posting.input + posting.output
        if posting.usd is None:
            self.unpriced += posting.input + posting.output
        elif self.usd is None:
            self.usd = posting.usd
        else:
            self.usd = add_usd(self.usd, posting.usd)

    def total(self) -> Total:
        """Return the sums so far."""
        return Total(
            self.input,
            self.output,
            self.calls,
            self.seconds,
            self.divided,
            self.unpriced,
            self.usd,
        )


# A call that ended, before its fate is known: kind, model, start, first token, end,
# usage, cost, span context, metering. A bare tuple: it is made on the span path, where
# a class would cost five times as much.
Call = tuple[
    str,
    str,
    float,
    float | None,
    float,
    "Usage | None",
    Cost | None,
    object | None,
    Metering | None,
]


class Fold:
    """Several calls of one kind and model as one interval with their sums."""

    __slots__ = (
        "calls",
        "cost",
        "end",
        "estimated",
        "input",
        "output",
        "seconds",
        "start",
    )

    def __init__(self) -> None:
        self.start: float = math.inf
        self.end: float = -math.inf
        self.calls: int = 0
        self.input: int = 0
        self.output: int = 0
        self.seconds: float = 0.0
        self.cost: Cost | None = None
        self.estimated: bool = False  # whether something in it is

    def add(self, call: Call) -> None:
        """Add a call. The sums stay exact."""
        _, _, start, _, end, usage, cost, _, metering = call
        self.start = min(self.start, start)
        self.end = max(self.end, end)
        self.calls += 1
        self.seconds += max(0.0, end - start)
        if usage is not None:
            self.input += usage.input or 0
            self.output += usage.output or 0
        if metering is not None and (
            metering.input is Basis.ESTIMATED or metering.output is Basis.ESTIMATED
        ):
            self.estimated = True
        if cost is not None:
            self.cost = _sum(self.cost, cost)

    def merge(self, other: Fold) -> None:
        """Add another fold of the same kind and model. The sums stay exact."""
        self.start = min(self.start, other.start)
        self.end = max(self.end, other.end)
        self.calls += other.calls
        self.input += other.input
        self.output += other.output
        self.seconds += other.seconds
        self.estimated = self.estimated or other.estimated
        if other.cost is not None:
            self.cost = _sum(self.cost, other.cost)


class Decision(NamedTuple):
    """The fate of the run: which moment divides its calls, and into what."""

    boundary: float
    before: Fate
    after: Fate
    cause: str


def post_call(call: Call, decision: Decision) -> list[Posting]:
    """Split one call; its dollars follow its tokens and sum exactly to its cost."""
    kind, model, start, first_token, end, usage, cost, span_context, known = call
    boundary, before, after, cause = decision
    portions = split(start, first_token, end, usage, boundary, before, after, known)
    if len(portions) == 1:
        fate, tokens_in, tokens_out, basis, seconds = portions[0]
        usd = None if cost is None else cost.total
        whole = (kind, model, tokens_in, tokens_out, 1, seconds, basis, span_context)
        return [Posting(fate, *whole, cause, usd)]
    dollars = _divide(cost, portions)
    return [
        Posting(
            fate,
            kind,
            model,
            tokens_in,
            tokens_out,
            1 if index == 0 else 0,
            seconds,
            basis,
            span_context,
            cause,
            dollars[index],
        )
        for index, (fate, tokens_in, tokens_out, basis, seconds) in enumerate(portions)
    ]


def _divide(
    cost: Cost | None, portions: tuple[Portion, ...]
) -> list[Decimal] | list[None]:
    """Return the dollars of each portion: input to the first, output by its tokens.

    What has no tokens and costs while it runs (a tool) is divided by its seconds.
    """
    if cost is None:
        return [None] * len(portions)
    dollars: list[Decimal] = []
    rest = cost.output
    weights: list[float] = [portion.output for portion in portions]
    if not any(weights):
        weights = [portion.seconds for portion in portions]
    whole = sum(weights)
    for weight in weights[:-1]:
        share, rest = share_usd(rest, weight, whole)
        whole -= weight
        dollars.append(share)
    dollars[0] = add_usd(dollars[0], cost.input)
    dollars.append(rest)
    return dollars


def post_fold(kind: str, model: str, fold: Fold, decision: Decision) -> list[Posting]:
    """Divide a fold in proportion to time, where the moment falls inside it."""
    boundary, before, after, cause = decision
    usd = None if fold.cost is None else fold.cost.total
    inside = fold.start < boundary < fold.end
    whole = Posting(
        after if fold.start >= boundary and fold.end > boundary else before,
        kind,
        model,
        fold.input,
        fold.output,
        fold.calls,
        fold.seconds,
        _basis(fold, divided=inside),
        None,
        cause,
        usd,
    )
    if not inside:
        return [whole]
    fraction = (boundary - fold.start) / (fold.end - fold.start)
    usd_early, usd_late = (None, None) if usd is None else share_usd(usd, fraction, 1)
    early = whole._replace(
        input=prorate(fold.input, fold.start, fold.end, boundary),
        output=prorate(fold.output, fold.start, fold.end, boundary),
        calls=prorate(fold.calls, fold.start, fold.end, boundary),
        seconds=fold.seconds * fraction,
        usd=usd_early,
    )
    late = whole._replace(
        fate=after,
        input=fold.input - early.input,
        output=fold.output - early.output,
        calls=fold.calls - early.calls,
        seconds=fold.seconds - early.seconds,
        usd=usd_late,
    )
    return [early, late]


def _basis(fold: Fold, *, divided: bool) -> Basis:
    if fold.estimated:
        return Basis.ESTIMATED
    return Basis.PRORATED if divided else Basis.REPORTED


def _sum(a: Cost | None, b: Cost) -> Cost:
    if a is None:
        return b
    return Cost(add_usd(a.input, b.input), add_usd(a.output, b.output))


def merged(postings: list[Posting]) -> list[Posting]:
    """Return fewer postings with the same sums: alike in all that is a label.

    Wasted ones stay apart, for each is the exemplar of its call. The first of those
    that are alike gives the place.
    """
    if len(postings) < _WORTH_MERGING:
        return postings
    alike: dict[object, Posting] = {}
    for posting in postings:
        fate, kind, model, *_, basis, _, cause, usd = posting
        key: object = (fate, kind, model, basis, cause, usd is None)
        if fate is Fate.WASTED:
            key = len(alike), key
        one = alike.get(key)
        if one is None:
            alike[key] = posting
            continue
        alike[key] = one._replace(
            input=one.input + posting.input,
            output=one.output + posting.output,
            calls=one.calls + posting.calls,
            seconds=one.seconds + posting.seconds,
            span_context=None,
            usd=None if one.usd is None or usd is None else add_usd(one.usd, usd),
        )
    return list(alike.values())
