"""The brake: enforcement that stops too many callers who are still there lets go.

A peer that sends deadlines of a millisecond, or a budget that lost a digit, would turn
enforcement into an outage. So the share of enforced runs that were stopped while their
caller was still connected is watched, over a sliding window.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from hangup.core.cause import Cause
from hangup.core.registry import RunObserver

if TYPE_CHECKING:
    from collections.abc import Callable

    from hangup.core.clock import Clock
    from hangup.core.run import Run

# Stops that nobody asked for: a kill, a newer request and a shutdown were asked for, a
# failure is not ours, and after a disconnect there is nobody to disappoint.
_OURS = (Cause.DEADLINE,)
_BUCKETS: Final = 60


class Window:
    """How many of the last events were of a kind. Not thread-safe.

    Constant in time and space: events are counted by the sixtieth of the window, and
    leave it together.

    Args:
        seconds: How long an event stays.
    """

    __slots__ = ("_buckets", "_now", "_width", "hits", "total")

    def __init__(self, seconds: float) -> None:
        self._width = max(seconds, 1e-3) / _BUCKETS
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self._buckets = [(0, 0)] * _BUCKETS
        self._now: int | None = None
        self.total: int = 0
        self.hits: int = 0

    def add(self, now: float, *, hit: bool) -> None:
        """Count one event at ``now``, in seconds; time does not run backwards here."""
        self._advance(int(now // self._width))
        assert self._now is not None  # noqa: S101  set by the line above
        at = self._now % _BUCKETS
        total, hits = self._buckets[at]
        self._buckets[at] = (total + 1, hits + hit)
        self.total += 1
        self.hits += hit

    def _advance(self, to: int) -> None:
        if self._now is None:
            self._now = to
        if to - self._now >= _BUCKETS:
            self.clear()
            self._now = to
        while self._now < to:
            self._now += 1
            at = self._now % _BUCKETS
            total, hits = self._buckets[at]
            self.total -= total
            self.hits -= hits
            self._buckets[at] = (0, 0)


class Brake(RunObserver):
    """Calls ``trip`` when too many enforced runs were stopped in their caller's face.

    Counts whole runs, when they are over: those that were delivered, and those that
    were abandoned for whatever cause. Thread-safe; nothing blocks.

    Args:
        share: Percent of the runs. More than that trips; 100 never does.
        runs: Below so many runs in the window nothing trips.
        window: Seconds.
        trip: Called outside locks, with what was counted: stopped, of all.
    """

    def __init__(
        self, share: float, runs: float, window: float, trip: Callable[[int, int], None]
    ) -> None:
        self._share = share
        self._runs = runs
        self._trip = trip
        self._window = Window(window)
        self._clock: Clock | None = None
        # Reentrant: a garbage collection may end a run in the middle of a count.
        self._lock = threading.RLock()

    def abandoned(self, run: Run) -> None:
        """Count the run, and trip if that was one too many."""
        abandonment = run.token.abandonment
        if run.parent is not None or abandonment is None or not run.mode.refuses:
            return
        self._count(run, hit=abandonment.cause in _OURS and run.caller == "connected")

    def delivered(self, run: Run) -> None:
        """Count the run."""
        if run.parent is None and run.mode.refuses:
            self._count(run, hit=False)

    def reset(self) -> None:
        """Forget what was counted."""
        with self._lock:
            self._window.clear()

    def after_fork(self) -> None:
        """Begin anew: the parent process's runs and lock mean nothing here."""
        self._lock = threading.RLock()
        self._window.clear()

    def _count(self, run: Run, *, hit: bool) -> None:
        clock = run.clock
        with self._lock:
            window = self._window
            if clock is not self._clock:
                # Tests inject one, and its instants mean nothing on another.
                self._clock = clock
                window.clear()
            window.add(clock.monotonic(), hit=hit)
            total, hits = window.total, window.hits
            if not hit or total < self._runs or hits * 100 <= self._share * total:
                return
            window.clear()
        self._trip(hits, total)
