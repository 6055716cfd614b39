"""Closing answers from outside: on a thread, and when their run stops."""

from __future__ import annotations

import queue
import threading
import weakref
from typing import TYPE_CHECKING, Any

from hangup.core.guard import guarded

if TYPE_CHECKING:
    from hangup.clients.bodies import Body, Watched
    from hangup.core.run import Run


class Closer:
    """Closes synchronous bodies, and ends any, on a daemon thread.

    Closing takes the pool's lock, and a garbage collection may strike while the very
    thread it strikes in holds that.
    """

    def __init__(self) -> None:
        self._bodies: queue.SimpleQueue[tuple[Any, Watched]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread, if it does not run. Not to be called by finalisers."""
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(
                target=self._work, name="hangup-closer", daemon=True
            )
            self._thread.start()

    def close(self, inner: Any, watched: Watched) -> None:
        """End a body and close it; without ``inner`` end it only. Never waits."""
        self._bodies.put((inner, watched))

    def _work(self) -> None:
        while True:
            inner, watched = self._bodies.get()
            guarded(watched.abort)
            if inner is not None:
                guarded(inner.close)


closer = Closer()


class Opened:
    """Bodies read for a run, so that its stop finds them. Thread-safe.

    Attributes:
        bodies: All of them; empty where a stop need not look for any.
    """

    def __init__(self) -> None:
        self.bodies: dict[int, weakref.ref[Body]] = {}

    def add(self, body: Body) -> None:
        """Note a body that is read for a run, while it lives."""
        key = id(body)
        self.bodies[key] = weakref.ref(body, lambda _: self.bodies.pop(key, None))

    def of(self, run: Run) -> list[Body]:
        """Return those of a run, and of runs below it, that have not ended."""
        bodies = [reference() for reference in tuple(self.bodies.values())]
        return [
            body
            for body in bodies
            if body is not None
            and not body.watched.ended
            and body.watched.run is not None
            and run.work.encloses(body.watched.run)
        ]


opened = Opened()


def close_unread(run: Run) -> None:
    """Close the answers of a stopped run that nobody is reading right now.

    One that is being read is closed by its reader, which gets the stop itself, or
    belongs to somebody whom the stop does not concern. One that is drained is left to
    its reader, whom the stop reaches when the block around it ends.
    """
    for body in opened.of(run):
        if not body.watched.reading and not body.watched.drained:
            body.abandon()
