"""What enforcement kept from being spent: estimates, from this process's own calls.

Of each model and kind of call the :data:`RECENT` latest whole calls are remembered, and
an estimate is drawn from them:

- **A refused call** would have used what such a call uses on average: the mean, with
  the largest twentieth of the values cut down to the largest of the rest (winsorised
  at the top; W. J. Dixon and J. W. Tukey, Technometrics 10, 1968). The mean, since what
  is reported is a sum over many refused calls, and only means add up to a sum: medians
  of a skewed quantity do not. Cut at the top, since one runaway answer must not be
  claimed again with every refusal: it errs on the low side.
- **The rest of a stream** that was cut after n tokens is the mean residual life at n:
  of the calls that went on beyond n, the mean of what they had left (W. J. Hall and
  J. A. Wellner, "Mean residual life", 1981), winsorised likewise, and never more than
  the request allowed. So a stream is expected to go on the longer the more such calls
  do, and nothing is claimed beyond any length that has been seen. It rests on this:
  whoever cuts (a user who leaves, a deadline) knows how long the answer has taken, and
  not how long it would have become.

Measured over 500 cuts each, of answers with log-normal lengths (sigma 0.7) by users who
leave after exponential times, from 128 calls: the sum claimed was 0.97 of the truth in
the median of 30 draws, half of them within 0.86 and 1.03; with sigma 1, which has a
longer tail, 0.89, within 0.80 and 0.99.

Calls that were cut are not entered: how long they would have been is not known. Where
long calls are cut more often than short ones the history is therefore short, and the
estimates low.

Fewer than :data:`LEAST_CALLS` calls, or :data:`LEAST_BEYOND` that went on beyond n, are
no history and give no estimate. Estimates are for counters of their own: they are never
added to anything that was measured. Nothing may be claimed for a call whose provider
may have gone on and billed it; who asks has to know.
"""

from __future__ import annotations

import itertools
from decimal import Decimal
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from hangup.core.guard import fault

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hangup.spend.pricing import Cost
    from hangup.spend.usage import Usage

RECENT = 128
"""Calls that are remembered of one model and kind."""
LEAST_CALLS = 10
"""Whole calls that an estimate for a refused call needs."""
LEAST_BEYOND = 5
"""Whole calls that went on beyond this length, that an estimate of the rest needs."""

_MOST_KEYS = 128
_TAIL = 20  # one value in so many is cut down to the largest of the rest
_EMBEDDINGS = "embeddings"


class Estimate(NamedTuple):
    """What would have been used. An estimate, whatever it is compared with.

    Attributes:
        input: Input tokens.
        output: Output tokens.
        usd: Dollars; None where the calls behind it had no price.
        calls: How many calls it rests on; 0 where it is certain.
    """

    input: int
    output: int
    usd: Decimal | None
    calls: int


# A call as it is remembered: input, output, cost. What follows from it is worked out
# when somebody asks: few calls are ever refused, and every call is remembered.
_Kept: TypeAlias = "tuple[int, int, Cost | None]"


class _Sample(NamedTuple):
    input: int
    output: int
    usd: float | None
    usd_output: float | None


class _Ring:
    """The latest samples. No lock: every step is atomic by itself."""

    __slots__ = ("_next", "_slots", "used")

    def __init__(self) -> None:
        self._slots: list[_Kept | None] = [None] * RECENT
        self._next = itertools.count()
        self.used = 0

    def add(self, call: _Kept) -> None:
        self._slots[next(self._next) % RECENT] = call

    def samples(self) -> list[_Sample]:
        return [_sample(*kept) for kept in self._slots.copy() if kept is not None]


class Avoided:
    """The history of a process, and what it lets be expected.

    Thread-safe without a lock, so that a finaliser may come by anywhere; bounded: of
    :data:`RECENT` calls each of 128 models and kinds, those used last; never raises.
    """

    __slots__ = ("_clock", "_rings")

    def __init__(self) -> None:
        self._rings: dict[tuple[str, str], _Ring] = {}
        self._clock = itertools.count(1)

    def record(
        self, model: str, kind: str, usage: Usage | None, cost: Cost | None = None
    ) -> None:
        """Remember a call that ran to its end.

        Not for calls that were cut, refused or failed, and not for what is itself an
        estimate. A call of which input or output is unknown is not remembered, except
        embeddings, that have no output; nor is one without usage (a tool), unless it
        has a price.

        Args:
            model: The call's model, or a tool's name.
            kind: The call's kind.
            usage: What it used, as reported.
            cost: What it cost; None when it has no price.
        """
        try:
            if usage is None:
                if cost is None:
                    return
                tokens_in = tokens_out = 0
            else:
                output = usage.output
                if output is None and kind == _EMBEDDINGS:
                    output = 0
                if usage.input is None or output is None:
                    return
                tokens_in, tokens_out = usage.input, output
            ring = self._rings.get((model, kind))
            if ring is None:
                ring = self._new_ring(model, kind)
            ring.used = next(self._clock)
            ring.add((tokens_in, tokens_out, cost))
        except Exception as error:  # noqa: BLE001  any fault of ours
            fault("Avoided.record", error)

    def estimate_refused(self, model: str, kind: str) -> Estimate | None:
        """Return what a call that was refused before it started would have used.

        Returns:
            None without enough history.
        """
        try:
            samples = self._samples(model, kind)
            if len(samples) < LEAST_CALLS:
                return None
            usd = [sample.usd for sample in samples if sample.usd is not None]
            return Estimate(
                _round(_mean([sample.input for sample in samples])),
                _round(_mean([sample.output for sample in samples])),
                _dollars(_mean(usd)) if len(usd) >= LEAST_CALLS else None,
                len(samples),
            )
        except Exception as error:  # noqa: BLE001  any fault of ours
            fault("Avoided.estimate_refused", error)
            return None

    def estimate_rest(
        self, model: str, kind: str, tokens_so_far: int, max_output: int | None = None
    ) -> Estimate | None:
        """Return what a stream that was cut had still to come; its input is spent.

        Args:
            model: The call's model.
            kind: The call's kind.
            tokens_so_far: Output tokens that had come; zero or more.
            max_output: The most that the request allowed; None for no limit.

        Returns:
            None without enough history of calls that were longer.
        """
        try:
            if max_output is not None and tokens_so_far >= max_output:
                return Estimate(0, 0, Decimal(0), 0)
            beyond = [
                sample
                for sample in self._samples(model, kind)
                if sample.output > tokens_so_far
            ]
            if len(beyond) < LEAST_BEYOND:
                return None
            rest = _mean(
                [
                    (
                        sample.output
                        if max_output is None
                        else min(sample.output, max_output)
                    )
                    - tokens_so_far
                    for sample in beyond
                ]
            )
            rate = _per_token(beyond)
            return Estimate(
                0,
                _round(rest),
                None if rate is None else _dollars(rate * rest),
                len(beyond),
            )
        except Exception as error:  # noqa: BLE001  any fault of ours
            fault("Avoided.estimate_rest", error)
            return None

    def _samples(self, model: str, kind: str) -> list[_Sample]:
        ring = self._rings.get((model, kind))
        return [] if ring is None else ring.samples()

    def _new_ring(self, model: str, kind: str) -> _Ring:
        # Names of models are text from outside: the one unused for longest goes.
        while len(self._rings) >= _MOST_KEYS:
            oldest = min(self._rings.copy().items(), key=lambda item: item[1].used)
            self._rings.pop(oldest[0], None)
        return self._rings.setdefault((model, kind), _Ring())


def _sample(tokens_in: int, tokens_out: int, cost: Cost | None) -> _Sample:
    if cost is None:
        return _Sample(tokens_in, tokens_out, None, None)
    return _Sample(tokens_in, tokens_out, float(cost.total), float(cost.output))


def _mean(values: Sequence[float]) -> float:
    """Return the mean with the largest twentieth cut down to the largest of the rest.

    Of fewer than twenty values the largest is cut, down to the second.
    """
    ordered = sorted(values)
    tail = max(1, len(ordered) // _TAIL)
    kept = ordered[:-tail]
    return (sum(kept) + tail * kept[-1]) / len(ordered)


def _per_token(samples: Sequence[_Sample]) -> float | None:
    """Return the dollars of an output token; None where too few had a price."""
    priced = [sample for sample in samples if sample.usd_output is not None]
    if len(priced) < LEAST_BEYOND:
        return None
    tokens = sum(sample.output for sample in priced)
    return sum(sample.usd_output or 0.0 for sample in priced) / tokens


def _round(tokens: float) -> int:
    return int(tokens + 0.5)


def _dollars(usd: float) -> Decimal:
    # A millionth of a millionth of a dollar: an estimate says nothing beyond.
    return Decimal(f"{usd:.12f}")
