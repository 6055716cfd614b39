"""When to try again, and what time it is on the bus."""

from __future__ import annotations

import math
import random
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from hangup.bus.base import Transport

FIRST_PAUSE: Final = 0.05
LONGEST_PAUSE: Final = 1.0
"""Seconds between two attempts to reach a bus that is down, at most."""
_TRUSTED: Final = 300.0  # seconds after which two clocks may have drifted apart
_TIMES: Final = 4

chance: Final = random.SystemRandom()
"""Not the module's own: an application may have seeded that, and counts on it."""


class Pause:
    """How long to wait before the next attempt: longer each time, never the same."""

    def __init__(self) -> None:
        self._next = FIRST_PAUSE

    def reset(self) -> None:
        """Begin again: it worked."""
        self._next = FIRST_PAUSE

    def length(self) -> float:
        """Return seconds, of which half are by chance."""
        now, self._next = self._next, min(2 * self._next, LONGEST_PAUSE)
        return now * chance.uniform(0.5, 1.0)


class Clock:
    """Puts instants of this process on the clock of the bus.

    The nearer the question and its answer are to each other, the better it is known,
    and the best of several is kept: what delays a claim does not make its run younger.

    Args:
        transport: Whose clock it is.
        here: The clock of this process, in seconds.
    """

    def __init__(
        self, transport: Transport, here: Callable[[], float] = time.monotonic
    ) -> None:
        self._transport = transport
        self._here = here
        self.forget()

    def forget(self) -> None:
        """Ask again: it may be another clock."""
        self._width = math.inf
        self._offset = 0
        self._asked_at = 0.0

    def ask(self) -> None:
        """Learn what there is to learn."""
        now = self._here()
        if now - self._asked_at > _TRUSTED:
            self.forget()
        for _ in range(_TIMES):
            before = self._here()
            there = self._transport.now()
            after = self._here()
            if after - before < self._width:
                self._width = after - before
                self._offset = there - round((before + after) / 2 * 1_000_000)
                self._asked_at = after

    def at(self, instant: float) -> int:
        """Return an instant of ``time.monotonic`` in microseconds there."""
        return self._offset + round(instant * 1_000_000)
