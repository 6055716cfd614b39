"""The split: what of a call belongs to which side of a moment.

The moment is T0 of an abandoned run (sunk before, wasted after) or the delivery of
its result (delivered before, background work after).
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
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
    """Output divided in proportion to time since its first token."""
    ESTIMATED = "estimated"
    """Divided in proportion to a time that is itself only a stand-in."""


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
) -> tuple[Portion, ...]:
    """Split one call at ``boundary``.

    - Ended at or before it: all ``before``. Started at or after it: all ``after``.
    - Across it: the input was committed at the start, so it is ``before``. The output
      is divided in proportion to time since ``first_token``; where that is unknown,
      since ``start`` (basis estimated). Output whose first token came after the
      boundary is all ``after``, which divides nothing.

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

    Returns:
        One portion, or two or three for a call across the boundary: only there can
        input and output of one fate differ in their basis.
    """
    tokens_in = tokens_out = 0
    if usage is not None:
        tokens_in = usage.input or 0
        tokens_out = usage.output or 0
    if end <= boundary or start >= boundary:
        fate = before if end <= boundary else after
        seconds = max(0.0, end - start)
        return (Portion(fate, tokens_in, tokens_out, Basis.REPORTED, seconds),)
    if first_token is None:
        since, basis = start, Basis.ESTIMATED
    else:
        since, basis = max(start, first_token), Basis.PRORATED
    early = prorate(tokens_out, since, end, boundary)
    committed = Portion(before, tokens_in, 0, Basis.REPORTED, boundary - start)
    if not early:
        # Nothing came before the boundary: exact if the first token says so.
        sure = not tokens_out or (first_token is not None and since >= boundary)
        basis = Basis.REPORTED if sure else basis
        return (committed, Portion(after, 0, tokens_out, basis, end - boundary))
    return (
        committed,
        Portion(before, 0, early, basis, 0.0),
        Portion(after, 0, tokens_out - early, basis, end - boundary),
    )


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
