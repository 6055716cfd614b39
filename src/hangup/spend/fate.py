"""The split: what of a call belongs to which side of a moment.

The moment is T0 of an abandoned run (sunk before, wasted after) or the delivery of
its result (delivered before, background work after).
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from hangup.spend.usage import Usage


class Fate(StrEnum):
    """What became of what was spent. A closed list."""

    DELIVERED = "delivered"
    """Spent on a result that somebody received."""
    SUNK = "sunk"
    """Spent before the run was abandoned."""
    WASTED = "wasted"
    """Spent after the run was abandoned."""
    AFTER = "after"
    """Background work after delivery; never waste."""


class Basis(StrEnum):
    """How the tokens of a portion are known, from best to worst."""

    REPORTED = "reported"
    """As reported: no token of the portion was divided."""
    PRORATED = "prorated"
    """Reported as a whole; this portion of it is in proportion to time."""
    ESTIMATED = "estimated"
    """Never reported: told from the text that came, or from the request."""


class Metering(NamedTuple):
    """What is known of a call beyond its usage, where its response was metered.

    Attributes:
        input: How its input is known, reported or estimated.
        output: How its output is known, reported or estimated.
        came: How much of the output had come at or before a moment, never falling,
            from 0 to all of it; None where only the whole is known.
    """

    input: Basis
    output: Basis
    came: Callable[[float], int] | None


class Portion(NamedTuple):
    """The part of one call that has one fate and one basis.

    Attributes:
        fate: What became of it.
        input: Input tokens.
        output: Output tokens.
        basis: How these tokens are known.
        seconds: Time the call ran on this side of the moment.
    """

    fate: Fate
    input: int
    output: int
    basis: Basis
    seconds: float


def split(  # noqa: PLR0913, PLR0917  a call is two instants, a usage and two names
    start: float,
    first_token: float | None,
    end: float,
    usage: Usage | None,
    boundary: float,
    before: Fate,
    after: Fate,
    metering: Metering | None = None,
) -> tuple[Portion, ...]:
    """Split one call at ``boundary``.

    - Ended at or before it: all ``before``. Started at or after it: all ``after``.
    - Across it: the input was committed at the start, so it is ``before``. The output
      is divided in proportion to time since ``first_token``; where that is unknown,
      since ``start`` (basis prorated). Output whose first token came after the
      boundary is all ``after``, which divides nothing. Where the stream was metered
      nothing is divided by proportion: what had come by then is known.

    Every token is in exactly one portion, and the portions sum exactly to ``usage``
    (an unknown field counts 0). Seconds are divided at the boundary. The first
    portion is always the one that holds the start of the call.

    Args:
        start: When the call started, seconds on one clock for all of these instants.
        first_token: When its first token came, or None.
        end: When it ended.
        usage: What it used, or None when unknown.
        boundary: The moment; ``math.inf`` puts everything before it.
        before: The fate up to the moment.
        after: The fate from then on.
        metering: What metering knows of it; None where it was not metered.

    Returns:
        One portion to four: input and output of one fate may differ in their basis.
    """
    tokens_in = tokens_out = 0
    if usage is not None:
        tokens_in = usage.input or 0
        tokens_out = usage.output or 0
    known_in = known_out = Basis.REPORTED
    if metering is not None:
        known_in, known_out, _ = metering
    if end <= boundary or start >= boundary:
        fate = before if end <= boundary else after
        seconds = max(0.0, end - start)
        if known_in is known_out or not (tokens_in and tokens_out):
            basis = known_in if tokens_in else known_out
            return (Portion(fate, tokens_in, tokens_out, basis, seconds),)
        return (
            Portion(fate, tokens_in, 0, known_in, seconds),
            Portion(fate, 0, tokens_out, known_out, 0.0),
        )
    early, basis = _early(tokens_out, start, first_token, end, boundary, metering)
    committed = Portion(before, tokens_in, 0, known_in, boundary - start)
    late = Portion(after, 0, tokens_out - early, basis, end - boundary)
    if not early:
        return (committed, late)
    return (committed, Portion(before, 0, early, basis, 0.0), late)


def _early(  # noqa: PLR0913, PLR0917  what a call and a moment are
    tokens: int,
    start: float,
    first_token: float | None,
    end: float,
    boundary: float,
    metering: Metering | None,
) -> tuple[int, Basis]:
    """Return how much of the output came before the boundary, and how that is known."""
    known = Basis.REPORTED if metering is None else metering.output
    if metering is not None and metering.came is not None:
        return max(0, min(tokens, metering.came(boundary))), known
    since = start if first_token is None else max(start, first_token)
    early = prorate(tokens, since, end, boundary)
    if not early and (not tokens or (first_token is not None and since >= boundary)):
        # Nothing came before the boundary: exact if the first token says so.
        return 0, known
    return early, Basis.PRORATED if known is Basis.REPORTED else known


def prorate(count: int, since: float, end: float, boundary: float) -> int:
    """Return how many of ``count`` came before ``boundary``, at an even rate.

    Args:
        count: What came between ``since`` and ``end``.
        since: When the first came.
        end: When the last came.
        boundary: The moment to divide at.

    Returns:
        A whole number from 0 to ``count``, rounded half up.
    """
    if boundary <= since:
        return 0
    if boundary >= end:
        return count
    return min(count, int(count * ((boundary - since) / (end - since)) + 0.5))
