"""A machine that was asleep: its monotonic clock stood still, its callers' did not.

Linux keeps two such clocks. ``CLOCK_MONOTONIC``, which everything here is measured on,
stops while the machine is suspended; ``CLOCK_BOOTTIME`` goes on. What the second has
gained on the first since a run began is time that its deadline did not see. Elsewhere
there is nothing to compare, and a deadline stands still with the machine.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from typing import TYPE_CHECKING, Final

from hangup.core.cause import Cause
from hangup.core.clock import SYSTEM_CLOCK, timer_of
from hangup.core.guard import guarded
from hangup.core.registry import RunObserver

if TYPE_CHECKING:
    from collections.abc import Callable

    from hangup.core.clock import Clock
    from hangup.core.run import Run

EVERY: Final = 0.5
"""Seconds between two looks, and so the longest that a stop comes after waking."""
_WORTH: Final = 1.0
_CLOSE: Final = 0.01
_TRIES: Final = 5
_BOOTTIME: Final = getattr(time, "CLOCK_BOOTTIME", None)


def asleep() -> float | None:
    """Seconds this machine has been suspended since it was started, None if unknown.

    Thread-safe. None also where this thread was kept waiting between the two clocks so
    often that their difference would say more of that.
    """
    if _BOOTTIME is None:
        return None
    for _ in range(_TRIES):
        before = time.monotonic()
        boot = time.clock_gettime(_BOOTTIME)
        if time.monotonic() - before < _CLOSE:
            return boot - before
    return None


class Sleeps(RunObserver):
    """Abandons runs whose deadline passed while the machine slept. Thread-safe.

    Cause ``deadline``, as if it had passed awake; not in observe mode, where no
    deadline abandons anything. Looks twice a second while such runs are live, on the
    thread of the timers, and not at all while there are none.

    Args:
        clock: What the looks are timed by; a test's.
        slept: Reads how long the machine has slept so far; a test's.
    """

    def __init__(
        self,
        clock: Clock = SYSTEM_CLOCK,
        slept: Callable[[], float | None] = asleep,
    ) -> None:
        self._clock = clock
        self._slept = slept
        self.reset()

    def reset(self) -> None:
        """Forget everything, as a forked child must: its timers are its parent's."""
        # Reentrant: a garbage collection may close a run in the middle of these.
        self._lock = threading.RLock()
        self._runs: weakref.WeakKeyDictionary[Run, float] = weakref.WeakKeyDictionary()
        self._armed = False
        self._last: float | None = None
        self._woken = False

    def started(self, run: Run) -> None:
        """Watch a run with a deadline of its own that can abandon it."""
        if not (run.token.binding and run.deadline.is_set):
            return
        slept = self._slept()
        if slept is None:
            return
        with self._lock:
            self._runs[run] = slept
            arm = not self._armed
            if arm:
                self._armed, self._last, self._woken = True, slept, False
        if arm:
            self._arm()

    def closed(self, run: Run) -> None:
        """Watch it no more."""
        with self._lock:
            self._runs.pop(run, None)

    def _arm(self) -> None:
        call_at = timer_of(self._clock, on_loop=False)
        call_at(self._clock.monotonic() + EVERY, self._look)

    def _look(self) -> None:
        slept = self._slept()
        late: list[Run] = []
        with self._lock:
            again = self._armed = bool(self._runs)
            if slept is not None:
                if self._last is not None and slept - self._last > _WORTH:
                    self._woken = True
                self._last = slept
                if self._woken:
                    late = self._late(slept)
        for run in late:
            guarded(run.cancel, Cause.DEADLINE, "the machine was suspended")
        if again:
            self._arm()

    def _late(self, slept: float) -> list[Run]:
        """Return the runs whose deadline has passed by now, sleep counted."""
        late = []
        for ref in self._runs.keyrefs():  # not the items: a run may go meanwhile
            run = ref()
            before = None if run is None else self._runs.get(run)
            if (
                run is not None
                and before is not None
                and slept - before > _WORTH
                and run.deadline.remaining() <= slept - before
                and run.abandonment is None
            ):
                late.append(run)
        return late


_sleeps = Sleeps()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_sleeps.reset)


def observer() -> Sleeps:
    """Return the one of this process, to be added to the run observers."""
    return _sleeps
