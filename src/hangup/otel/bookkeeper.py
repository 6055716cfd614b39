"""A thread that settles calls which ended where no event loop runs.

A garbage collection may end a span in the middle of anything, also of the SDK's own
bookkeeping with its locks held: settling right there would wait for them for ever. So
what ended there is settled elsewhere.
"""

from __future__ import annotations

import queue
import threading
import time
from typing import TYPE_CHECKING, Final

from hangup.core.guard import guarded
from hangup.otel.backlog import works_off

if TYPE_CHECKING:
    from collections.abc import Callable


_SETTLE, _END = "settle", "end"
_AFTER_YOU: Final = 0.002  # seconds


class Bookkeeper:
    """Calls back on a daemon thread of its own. Thread-safe, survives a fork.

    Args:
        calls: What to call, in turn; several wishes at a time may be met at once.
    """

    def __init__(self, *calls: Callable[[], None]) -> None:
        self._calls = list(calls)
        # Its ``put`` may be called from a finaliser that interrupts another ``put``.
        self._wishes: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def also(self, call: Callable[[], None]) -> None:
        """Call this too, before the others."""
        self._calls.insert(0, call)

    def start(self) -> None:
        """Start the thread, if it does not run. Not to be called by finalisers."""
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(
                target=self._work,
                args=(self._wishes,),
                name="hangup-books",
                daemon=True,
            )
            self._thread.start()

    def stop(self) -> None:
        """End the thread. Idempotent."""
        if self._thread is not None:
            self._wishes.put(_END)
            self._thread = None

    def after_fork(self) -> None:
        """Begin anew in a child process, where the thread does not run."""
        self._wishes = queue.SimpleQueue()
        self._thread = None
        self.start()

    def wake(self) -> None:
        """Wish for a call. Never waits, may be called anywhere."""
        if self._wishes.empty():
            self._wishes.put(_SETTLE)

    def _work(self, wishes: queue.SimpleQueue[str]) -> None:
        works_off()
        while wishes.get() != _END:
            # The interpreter belongs to the loops that are to stop now.
            time.sleep(_AFTER_YOU)
            for call in self._calls:
                guarded(call)
