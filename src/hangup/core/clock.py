"""Time is an object: everything measures on a ``Clock``, and tests inject one.

Wall and monotonic time meet in one place only, :func:`unix_offset`.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import os
import threading
import time
from typing import TYPE_CHECKING, Protocol

from hangup.core.guard import guarded

if TYPE_CHECKING:
    from collections.abc import Callable


class Timer(Protocol):
    """A pending callback."""

    def cancel(self) -> None:
        """Forget the callback. Idempotent, thread-safe; late calls do nothing."""


class Clock(Protocol):
    """A source of time and timers."""

    def monotonic(self) -> float:
        """Seconds on a clock that never steps. Thread-safe."""

    def wall(self) -> float:
        """Seconds since the Unix epoch, for stamps that leave the process."""

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer:
        """Run ``callback`` at ``when`` on the monotonic clock, once.

        Thread-safe. The callback runs on the event loop of the caller where one
        is running, on a shared daemon thread otherwise; it must not block.
        """


def unix_offset(clock: Clock) -> float:
    """Seconds to add to a monotonic instant to get Unix time, as of now."""
    return clock.wall() - clock.monotonic()


def timer_of(clock: Clock, *, on_loop: bool) -> Callable[..., Timer]:
    """Return what calls back at an instant: ``clock.call_at``, or one off any loop.

    A loop's timers end with it. A run that belongs to none may see several come and go
    (``asyncio.run``, or ``run_sync`` of an agent framework, in a handler that blocks).

    Args:
        clock: What to measure on. One that has no such choice is taken as it is.
        on_loop: Whether the loop that is running here lives as long as the timer.
    """
    call: Callable[..., Timer] = clock.call_at
    return call if on_loop else getattr(clock, "call_off_loop", call)


class SystemClock:
    """The machine's clock. Thread-safe.

    ``monotonic`` and ``wall`` are the functions of :mod:`time` themselves, so that
    reading the clock costs no Python frame on the span path.
    """

    monotonic = staticmethod(time.monotonic)
    wall = staticmethod(time.time)

    def __init__(self) -> None:
        self._thread = _TimerThread()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._thread.after_fork)

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer:
        """See :meth:`Clock.call_at`."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return self._thread.call_at(when, callback)
        # Relative: an event loop may keep a clock of its own (uvloop caches one).
        return _LoopTimer(
            loop, loop.call_later(max(0.0, when - self.monotonic()), callback)
        )

    def call_off_loop(self, when: float, callback: Callable[[], None]) -> Timer:
        """Do the same on the daemon thread, also where an event loop is running."""
        return self._thread.call_at(when, callback)


class _LoopTimer:
    """A loop's timer that any thread may cancel."""

    __slots__ = ("_handle", "_loop")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, handle: asyncio.TimerHandle
    ) -> None:
        self._loop = loop
        self._handle = handle

    def cancel(self) -> None:
        self._handle.cancel()


class _ThreadTimer:
    """An entry of the timer thread's heap."""

    __slots__ = ("callback", "when")

    def __init__(self, when: float, callback: Callable[[], None]) -> None:
        self.when = when
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class _TimerThread:
    """One daemon thread for runs opened where no event loop runs.

    Started at the first timer, ends when it has had nothing to do for a while, so
    that an application that never uses it never sees it.
    """

    _IDLE_SECONDS = 5.0
    _FEW = 256

    def __init__(self) -> None:
        self._sequence = itertools.count()
        self.after_fork()

    def after_fork(self) -> None:
        """Begin anew: a child process has neither the thread nor its runs."""
        self._condition = threading.Condition()
        self._heap: list[tuple[float, int, _ThreadTimer]] = []
        self._most = self._FEW
        self._running = False

    def call_at(self, when: float, callback: Callable[[], None]) -> _ThreadTimer:
        timer = _ThreadTimer(when, callback)
        with self._condition:
            heapq.heappush(self._heap, (when, next(self._sequence), timer))
            if len(self._heap) > self._most:
                # Most runs end long before their deadline: drop what was cancelled.
                self._heap = [one for one in self._heap if one[2].callback is not None]
                heapq.heapify(self._heap)
                self._most = max(self._FEW, 2 * len(self._heap))
            if not self._running:
                self._start()
            elif self._heap[0][2] is timer:
                # Only then: whoever is woken for nothing takes the interpreter's lock
                # from the threads that have waited for it longer.
                self._condition.notify()
        return timer

    def _start(self) -> None:
        thread = threading.Thread(target=self._serve, name="hangup-timer", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the interpreter is going down: no timer fires any more
            return
        self._running = True

    def _serve(self) -> None:
        while (callback := self._next()) is not None:
            guarded(callback)

    def _next(self) -> Callable[[], None] | None:
        """Wait for the next due callback; None ends the thread."""
        idle_until = time.monotonic() + self._IDLE_SECONDS
        with self._condition:
            while True:
                while self._heap and self._heap[0][2].callback is None:
                    heapq.heappop(self._heap)
                now = time.monotonic()
                if self._heap:
                    when, _, timer = self._heap[0]
                    if when <= now:
                        heapq.heappop(self._heap)
                        if timer.callback is not None:
                            return timer.callback
                        continue
                    self._condition.wait(min(when - now, threading.TIMEOUT_MAX))
                    idle_until = time.monotonic() + self._IDLE_SECONDS
                elif now >= idle_until:
                    self._running = False
                    return None
                else:
                    self._condition.wait(idle_until - now)


SYSTEM_CLOCK = SystemClock()
