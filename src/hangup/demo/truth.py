"""What really happened: the model server's log against the users' own clocks.

Pure: nothing here knows of hangup, its metrics, or the agent's processes. Calls
and visits meet by the user's tag, which travels as a plain header.

Definitions, for one pass:

**T0** of a visit is :attr:`hangup.demo.users.Visit.t0`: the moment the user closed
the socket; for a user who waited and was given no answer, the deadline on the
user's clock (start + budget), or the refusal where that came sooner. In observe
nobody is refused, so an answer that came late was still delivered and its visit
has no T0.

**Tokens** are input and output. Input is spent when the call reaches the model
(``opened``), all of it; output when the model generated it, chunk by chunk. Of each
token either the wire told the caller, or it did not:

- *told*: of calls whose caller was sent the usage, all tokens; of a stream that opened
  with its input and was cut, the input;
- *estimated*: the rest of what a caller could see and nobody counted: a stream that was
  cut before its usage came, as far as it had been sent, and the input of any such call,
  which the caller wrote itself. Only an estimate can know how many tokens these are;
- *unknown*: what nobody but the model saw: the output of a call that was no stream and
  was cut in flight, and what a provider generated after it had seen the close. What it
  generated between the caller's last look and the close it saw is a chunk or two, on
  its way when the socket closed: that counts as estimated.

The sums, of which *delivered*, *sunk*, *wasted* and *unknown* add up to everything:

- *delivered*: tokens of visits that got their whole answer;
- *sunk*: tokens spent before T0, *wasted*: at or after T0;
- *wasted calls*: calls that reached the model at or after T0, which are waste from
  the first token on;
- *cut calls*: calls whose caller hung up before the whole response had come;
- *unknown tokens*: in none of the three above. Of them *wasted unknown* is what was
  generated at or after T0, waste that has to be under hangup's bound of the unknown;
- *estimated tokens*: contained in the three above, and *sunk estimated* and *wasted
  estimated* in theirs.

**Stop seconds** of a visit with a T0 that made any call: from T0 until the last of
its model connections was closed or its exchange was over; 0 where all were over
before.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from hangup.demo.journal import CallRecord
    from hangup.demo.users import Visit


@dataclass(frozen=True, slots=True)
class Truth:
    """The sums of one pass; see the module for what each one is."""

    delivered_tokens: int = 0
    sunk_tokens: int = 0
    wasted_tokens: int = 0
    wasted_calls: int = 0
    cut_calls: int = 0
    unknown_tokens: int = 0
    wasted_unknown_tokens: int = 0
    estimated_tokens: int = 0
    sunk_estimated_tokens: int = 0
    wasted_estimated_tokens: int = 0

    def __add__(self, other: Truth) -> Truth:
        names = [entry.name for entry in fields(self)]
        return Truth(
            **{name: getattr(self, name) + getattr(other, name) for name in names}
        )

    @property
    def all_wasted_tokens(self) -> int:
        """Everything that was spent after T0, also what only the model knows of."""
        return self.wasted_tokens + self.wasted_unknown_tokens

    def to_json(self) -> dict[str, int]:
        """Return the sums by name."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class StopSeconds:
    """How long the model stayed connected to runs nobody waited for."""

    p50: float
    p95: float
    max: float

    @classmethod
    def of(cls, seconds: Iterable[float]) -> StopSeconds:
        """Return nearest-rank percentiles; all 0.0 for no visit at all."""
        ordered = sorted(seconds)
        if not ordered:
            return cls(0.0, 0.0, 0.0)

        def rank(share: float) -> float:
            return ordered[max(0, math.ceil(share * len(ordered)) - 1)]

        return cls(rank(0.50), rank(0.95), ordered[-1])

    def to_json(self) -> dict[str, float]:
        """Return the seconds by name, to the tenth of a millisecond."""
        return {name: round(value, 4) for name, value in asdict(self).items()}


def calls_by_visit(
    visits: Iterable[Visit], calls: Iterable[CallRecord]
) -> list[tuple[Visit, list[CallRecord]]]:
    """Return each visit with its own calls, in the order they were opened."""
    by_tag: dict[str, list[CallRecord]] = defaultdict(list)
    for call in calls:
        by_tag[call.user].append(call)
    return [
        (visit, sorted(by_tag[visit.tag], key=lambda call: call.opened))
        for visit in visits
    ]


def split_tokens(call: CallRecord, t0: float) -> tuple[int, int]:
    """Return the call's tokens before ``t0``, and at or after it."""
    after = sum(tokens for at, tokens in call.chunks if at >= t0)
    if call.opened >= t0:
        after += call.input_tokens
    return call.total_tokens - after, after


def truth_of(visits: Iterable[Visit], calls: Iterable[CallRecord]) -> Truth:
    """Return the sums over all visits of a pass."""
    return sum(
        (visit_truth(visit, own) for visit, own in calls_by_visit(visits, calls)),
        Truth(),
    )


class Known(StrEnum):
    """What the caller can know of a token; see the module."""

    TOLD = "told"
    ESTIMATED = "estimated"
    UNKNOWN = "unknown"


def visit_truth(visit: Visit, calls: Sequence[CallRecord]) -> Truth:
    """Return the sums of one visit and its calls."""
    t0 = math.inf if visit.t0 is None else visit.t0
    sums: Counter[tuple[bool, Known]] = Counter()
    for call in calls:
        for at, tokens, known in _pieces(call):
            sums[at >= t0, known] += tokens
    before = sums[False, Known.TOLD] + sums[False, Known.ESTIMATED]
    useful = visit.t0 is None
    return Truth(
        delivered_tokens=before if useful else 0,
        sunk_tokens=0 if useful else before,
        wasted_tokens=sums[True, Known.TOLD] + sums[True, Known.ESTIMATED],
        wasted_calls=sum(1 for call in calls if call.opened >= t0),
        cut_calls=sum(1 for call in calls if call.cut),
        unknown_tokens=sums[False, Known.UNKNOWN] + sums[True, Known.UNKNOWN],
        wasted_unknown_tokens=sums[True, Known.UNKNOWN],
        estimated_tokens=sums[False, Known.ESTIMATED] + sums[True, Known.ESTIMATED],
        sunk_estimated_tokens=0 if useful else sums[False, Known.ESTIMATED],
        wasted_estimated_tokens=sums[True, Known.ESTIMATED],
    )


def _pieces(call: CallRecord) -> Iterator[tuple[float, int, Known]]:
    """Yield when which tokens were spent, and what the caller can know of them."""
    told = call.input_sent or call.usage_sent
    yield call.opened, call.input_tokens, Known.TOLD if told else Known.ESTIMATED
    for at, tokens in call.chunks:
        known = Known.UNKNOWN
        if call.usage_sent:
            known = Known.TOLD
        elif call.stream and (call.closed is None or at < call.closed):
            known = Known.ESTIMATED
        yield at, tokens, known


def stop_seconds(visits: Iterable[Visit], calls: Iterable[CallRecord]) -> StopSeconds:
    """Return how fast the model connections of abandoned visits were over."""
    return StopSeconds.of(
        max(0.0, max(call.closed or math.inf for call in own) - visit.t0)
        for visit, own in calls_by_visit(visits, calls)
        if visit.t0 is not None and own
    )
