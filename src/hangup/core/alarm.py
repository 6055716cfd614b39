"""A timer that may be armed on one thread while another says that it is too late."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from hangup.core.clock import Timer

    CallAt = Callable[[float, Callable[[], None]], Timer]


class Alarm:
    """Calls back once, unless it was stopped; stopped is for ever.

    Thread-safe without a lock: whoever arms it looks afterwards whether it was stopped
    meanwhile, so no timer outlives the stop. Two that arm it at a time may both be
    called back.
    """

    __slots__ = ("_stopped", "_timers")

    def __init__(self) -> None:
        self._stopped = False
        self._timers: list[Timer] = []

    def arm(self, call_at: CallAt, at: float, callback: Callable[[], None]) -> None:
        """Call ``callback`` at ``at``. Does nothing where it is armed, or stopped.

        Args:
            call_at: A clock's, see :class:`~hangup.core.clock.Clock`.
            at: When, on that clock.
            callback: What to call, as that clock calls it.
        """
        if self._stopped or self._timers:
            return
        self._timers.append(call_at(at, callback))
        if self._stopped:
            self.stop()

    def again(self, call_at: CallAt, at: float, callback: Callable[[], None]) -> None:
        """Arm it anew after it went off. Does nothing where it is stopped."""
        self._timers.clear()
        self.arm(call_at, at, callback)

    def stop(self) -> None:
        """Forget the timer, also one that is being armed now. Idempotent."""
        self._stopped = True
        while self._timers:
            try:
                self._timers.pop().cancel()
            except IndexError:  # another thread stops it too
                return

    def __del__(self) -> None:
        """Forget the timer: what it was for is gone, and nobody stopped it."""
        self.stop()


def weakly(call: Callable[[], None]) -> Callable[[], None]:
    """Return what calls a bound method, unless its object is gone; does not keep it.

    For a timer far off: a run that nobody closed, and nobody is in any more, has
    nothing left that a deadline could stop.
    """
    found = weakref.WeakMethod(call)

    def late() -> None:
        alive = found()
        if alive is not None:
            alive()

    return late
