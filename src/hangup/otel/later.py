"""Measurements that are handed to the SDK a moment later, where nothing is locked.

A garbage collection may close a run, or end a call, in the middle of anything, also of
the SDK's own collection with its locks held: to count right there would wait for them
for ever. So whatever hangup counts is queued. On an event loop its next turn hands the
queue on, elsewhere a thread of hangup's own, and before that every collection.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Any

from opentelemetry.metrics import Counter, Histogram

from hangup.core.guard import guarded
from hangup.core.opening import loop_here
from hangup.otel.backlog import Backlog
from hangup.otel.context import get_current

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from opentelemetry.context import Context
    from opentelemetry.metrics import Meter
    from opentelemetry.util.types import Attributes

PATIENCE = 1.0
"""Seconds that reading metrics waits for what is just being counted."""
_MANY = 1_000
"""Measurements that do not wait for the turn of a loop any longer, and that a thread
without one does not outrun."""


class Later:
    """The queue. Thread-safe.

    Bounded by what a loop does in one turn, and elsewhere by threads that give way to
    the one that hands it on.

    Attributes:
        wake: Called where no loop will see to the queue: has :meth:`drain` called on
            another thread. Must not wait, and is called anywhere.
    """

    def __init__(self) -> None:
        self.wake: Callable[[], None] = _nothing
        self._queue: deque[tuple[Any, ...]] = deque()
        self._backlog = Backlog(self._queue, _MANY)
        self._due_on: asyncio.AbstractEventLoop | None = None
        self._draining = threading.Lock()

    def put(self, measure: Callable[..., object], *args: object) -> None:
        """Queue a measurement, ``measure(*args)``; it brings its own context."""
        self._queue.append((measure, *args))
        loop = loop_here()
        if loop is None:
            self.wake()
            if len(self._queue) >= self._backlog.limit:
                self._backlog.give_way()
        elif loop is not self._due_on:
            self._due_on = loop
            loop.call_soon(guarded, self.drain)
        elif len(self._queue) >= _MANY:
            self.wake()

    def drain(self, patience: float = 0.0) -> None:
        """Hand on what is queued. Not to be called by finalisers.

        Args:
            patience: Seconds to wait for another thread that is at it.
        """
        # First: a turn that finds nothing to do has had its use all the same.
        self._due_on = None
        queue = self._queue
        while queue or patience:
            # For each anew: whoever waits may help, and does not wait for all of it.
            if not self._acquired(patience):
                return  # another thread is at it, and looks again afterwards
            try:
                # Empty: what another thread had in hand has measured what it would.
                done = not queue
                if not done:
                    measure, *args = queue.popleft()
                    guarded(measure, *args)
            finally:
                self._draining.release()
            if done and not queue:  # whoever found it taken just now has gone away
                return

    def _acquired(self, patience: float) -> bool:
        if patience:
            return self._draining.acquire(timeout=patience)
        return self._draining.acquire(blocking=False)

    def after_fork(self) -> None:
        """Forget what the parent process measured."""
        self._queue.clear()
        self._due_on = None
        self._draining = threading.Lock()


def _nothing() -> None:
    """Do nothing: a collection will come."""


class LaterMeter:
    """Makes counters and histograms that go through a queue; the rest is the meter's.

    Args:
        meter: Where they are made.
        later: The queue.
    """

    def __init__(self, meter: Meter, later: Later) -> None:
        self._meter = meter
        self._later = later

    def create_counter(self, name: str, **options: Any) -> Counter:
        """Make a counter."""
        return _LaterCounter(self._later, self._meter.create_counter(name, **options))

    def create_histogram(self, name: str, **options: Any) -> Histogram:
        """Make a histogram."""
        made = self._meter.create_histogram(name, **options)
        return _LaterHistogram(self._later, made)


class _LaterCounter(Counter):
    def __init__(self, later: Later, counter: Counter) -> None:
        self._put = later.put
        self._add: Any = counter.add

    def add(
        self,
        amount: float,
        attributes: Attributes | None = None,
        context: Context | None = None,
    ) -> None:
        context = get_current() if context is None else context
        self._put(self._add, amount, attributes, context)


class _LaterHistogram(Histogram):
    def __init__(self, later: Later, histogram: Histogram) -> None:
        self._put = later.put
        self._record: Any = histogram.record

    def record(
        self,
        amount: float,
        attributes: Attributes | None = None,
        context: Context | None = None,
    ) -> None:
        context = get_current() if context is None else context
        self._put(self._record, amount, attributes, context)
