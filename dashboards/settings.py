"""Thresholds, minimum volumes and windows: what a team may want to change.

Change one, run ``python -m dashboards``, commit what it wrote.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from hangup.config import Mode
from hangup.core.cause import Cause

MOST_BURN: Final = 0.8
"""A share cannot exceed 1, so a burn rate has to have room below that to fire."""

RUNBOOK_URL: Final = "https://example.invalid/hangup/dashboards/RUNBOOK.md"
"""Where your runbook is served; alerts link to a section of it."""

PAGED_MODES: Final = (Mode.ENFORCE.value,)
"""Pages look at runs that hangup was to stop. What observing shows is no emergency."""

ENFORCED_CAUSES: Final = (Cause.DEADLINE.value, Cause.SUPERSEDED.value)
"""Causes by which enforcing, and nobody's wish, ends a run whose caller waits."""


class CannotFireError(ValueError):
    """A burn rate asks for a share of waste that is never reached."""

    def __init__(self, factor: float, objective: float) -> None:
        super().__init__(
            f"a burn of {factor:g} times the objective of {objective:g} is a share of "
            f"{factor * objective:g} of all spend, and fires hardly ever or never: it "
            f"must stay below {MOST_BURN:g}; lower the factor or the objective"
        )


@dataclass(frozen=True, slots=True)
class Burn:
    """How fast the waste objective may be used up.

    Attributes:
        objective: Share of metered spend that may be wasted.
        factor: So many times the objective fires.
        long: Window that must burn that fast.
        short: Window that must too, so that the alert resolves soon.
        least: Abandoned runs in the long window, at least.

    Raises:
        CannotFireError: ``factor`` times ``objective`` is ``MOST_BURN`` or more.
    """

    objective: float
    factor: float
    long: str
    short: str
    least: int

    def __post_init__(self) -> None:
        if self.share >= MOST_BURN:
            raise CannotFireError(self.factor, self.objective)

    @property
    def share(self) -> float:
        """Share of metered spend from which on it fires."""
        return round(self.factor * self.objective, 6)


OBJECTIVE: Final = 0.03
"""Share of metered spend that may be wasted."""
FAST_BURN: Final = Burn(OBJECTIVE, 14.4, "1h", "5m", 20)
SLOW_BURN: Final = Burn(OBJECTIVE, 6, "6h", "30m", 50)

HARM_SHARE: Final = 0.02
"""Share of enforced runs that are stopped although the caller was connected."""
HARM_LEAST: Final = 20
"""Runs so stopped in ten minutes."""

WASTE_RATE: Final = 100
"""USD an hour: a page."""
WASTE_RATE_GROWN: Final = 10
"""USD an hour: worth a look if it is also so many times last week's:"""
WASTE_GROWTH: Final = 3
WASTE_LEAST: Final = 20
"""Abandoned runs in the hour."""

WASTE_SHARE: Final = 0.1
"""Share of metered spend in an hour."""
WASTE_SHARE_RUNS: Final = 50
WASTE_SHARE_USD: Final = 5

OLDEST: Final = 60
"""Seconds for which a run may be stopping."""
SLOW_STOP: Final = 1
"""Seconds to stop, 95th percentile. A bound of the histogram."""
SLOW_STOP_LEAST: Final = 50

SWALLOWED_SHARE: Final = 0.01
"""Share of abandoned runs in which a task swallowed the stop."""
SWALLOWED_LEAST: Final = 10
"""Such runs in the hour."""

UNKNOWN_SHARE: Final = 0.05
"""Share of model calls that ended without usage."""
UNPRICED_SHARE: Final = 0.01
"""Share of tokens without a price."""
OUTSIDE_SHARE: Final = 0.2
"""Share of tokens of calls outside runs."""
CALLS_LEAST: Final = 100
"""Model calls in the window."""
TOKENS_LEAST: Final = 100_000
"""The same as tokens, a thousand a call: calls outside runs have no other count."""

BAGGAGE_SHARE: Final = 0.01
BAGGAGE_LEAST: Final = 100
"""Runs in the hour."""

BUS_DOWN_SHARE: Final = 0.5
"""Share of the processes that do not hear the bus."""
