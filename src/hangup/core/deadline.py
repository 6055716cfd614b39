"""One absolute instant that a whole run must finish by."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hangup.core.clock import SYSTEM_CLOCK, unix_offset
from hangup.errors import ConfigError

if TYPE_CHECKING:
    from hangup.core.clock import Clock


def check_budget(budget: float | None, *, setting: str = "budget") -> float:
    """Return ``budget`` in seconds, with None as infinity.

    Raises:
        ConfigError: It is negative, NaN, or not a number.
    """
    if budget is None:
        return math.inf
    remedy = "give seconds as a number that is zero or more, or None for no deadline"
    try:
        seconds = float(budget)
    except (TypeError, ValueError):
        raise ConfigError(setting, budget, remedy) from None
    if math.isnan(seconds) or seconds < 0:
        raise ConfigError(setting, budget, remedy)
    return seconds


@dataclass(frozen=True, slots=True)
class Deadline:
    """An absolute point on a monotonic clock, or never.

    Set once at the top of a run and handed down unchanged; a child may only
    tighten it. Immutable, thread-safe.

    Attributes:
        at: Seconds on ``clock.monotonic()``; ``math.inf`` for no deadline.
        clock: The clock it is measured on.
    """

    at: float = math.inf
    clock: Clock = field(default=SYSTEM_CLOCK, compare=False, repr=False)

    @classmethod
    def after(cls, budget: float | None, clock: Clock = SYSTEM_CLOCK) -> Deadline:
        """Return the deadline ``budget`` seconds from now; None is never.

        Raises:
            ConfigError: The budget is negative, NaN, or not a number.
        """
        seconds = check_budget(budget)
        return cls(clock.monotonic() + seconds, clock)

    def remaining(self) -> float:
        """Seconds left; negative once past, ``math.inf`` without a deadline."""
        return self.at - self.clock.monotonic()

    def expired(self) -> bool:
        """Whether the instant has come."""
        return self.clock.monotonic() >= self.at

    def tightened(self, other: Deadline) -> Deadline:
        """Return the earlier of the two."""
        return other if other.at < self.at else self

    @property
    def is_set(self) -> bool:
        """Whether there is a deadline at all."""
        return self.at != math.inf

    def unix(self) -> float:
        """Return the instant in Unix seconds, for stamps that leave the process."""
        return self.at + unix_offset(self.clock)
