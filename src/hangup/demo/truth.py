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
(``opened``), all of it; output when the model generated it, chunk by chunk. That
includes what was generated for a caller who was cut off, and after the caller hung
up by a provider that goes on.

- *delivered*: tokens of visits that got their whole answer;
- *sunk*: tokens spent before T0, *wasted*: at or after T0;
- *wasted calls*: calls that reached the model at or after T0, which are waste from
  the first token on;
- *cut calls*: calls whose caller hung up before the whole response had come;
- *unknown tokens*: all tokens of calls that were cut before the caller was told
  the usage (a stream before its usage chunk, any other call in flight). They are
  in *sunk* and *wasted* too, as the model generated them; no client can know them.

**Stop seconds** of a visit with a T0 that made any call: from T0 until the last of
its model connections was closed or its exchange was over; 0 where all were over
before.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

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

    def __add__(self, other: Truth) -> Truth:
        names = [entry.name for entry in fields(self)]
        return Truth(
            **{name: getattr(self, name) + getattr(other, name) for name in names}
        )

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


def visit_truth(visit: Visit, calls: Sequence[CallRecord]) -> Truth:
    """Return the sums of one visit and its calls."""
    cut = [call for call in calls if call.cut]
    unknown = sum(call.total_tokens for call in cut if not call.usage_sent)
    t0 = visit.t0
    if t0 is None:
        total = sum(call.total_tokens for call in calls)
        return Truth(delivered_tokens=total, cut_calls=len(cut), unknown_tokens=unknown)
    portions = [split_tokens(call, t0) for call in calls]
    return Truth(
        sunk_tokens=sum(before for before, _ in portions),
        wasted_tokens=sum(after for _, after in portions),
        wasted_calls=sum(1 for call in calls if call.opened >= t0),
        cut_calls=len(cut),
        unknown_tokens=unknown,
    )


def stop_seconds(visits: Iterable[Visit], calls: Iterable[CallRecord]) -> StopSeconds:
    """Return how fast the model connections of abandoned visits were over."""
    return StopSeconds.of(
        max(0.0, max(call.closed or math.inf for call in own) - visit.t0)
        for visit, own in calls_by_visit(visits, calls)
        if visit.t0 is not None and own
    )
