"""A file that is read again when it changes, off every path that matters.

One daemon thread looks at it about once a second. A new state counts when it was the
same at two looks in a row, so that a file which is being written is not taken half. A
child process starts its own thread when it first has a use for one.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from typing import TYPE_CHECKING, NamedTuple

from hangup.core.guard import guarded

if TYPE_CHECKING:
    from collections.abc import Callable

INTERVAL = 1.0
"""Seconds between two looks. A change is in force after three of them at the latest."""


class _State(NamedTuple):
    """What tells one state of a file from another; of a link, what it points to."""

    device: int
    inode: int
    size: int
    modified: int


class FileWatch:
    """Watches one file. Thread-safe.

    Args:
        path: The file; it need not be there.
        changed: Called on the thread, when it has changed since the last call.
    """

    def __init__(self, path: str, changed: Callable[[], None]) -> None:
        self._path = path
        self._changed = changed
        self._known = self._seen = self._state()
        self._stop = threading.Event()
        self.asleep: bool = True
        _watches.add(self)

    def start(self) -> None:
        """Start to look, if nobody does. Idempotent; raises nothing."""
        if not self.asleep:
            return
        self.asleep = False
        thread = threading.Thread(target=self._serve, name="hangup-policy", daemon=True)
        with contextlib.suppress(RuntimeError):  # the interpreter is going down
            thread.start()

    def stop(self) -> None:
        """End the thread, at its next look. For ever."""
        self._stop.set()
        self.asleep = False

    def look(self) -> None:
        """Look once; what the thread does."""
        state = self._state()
        settled, self._seen = state == self._seen, state
        if settled and state != self._known:
            self._known = state
            self._changed()

    def _serve(self) -> None:
        stop = self._stop
        while not stop.wait(INTERVAL):
            guarded(self.look)

    def _state(self) -> _State | None:
        try:
            found = os.stat(self._path)  # noqa: PTH116  no object per look
        except OSError:
            return None
        return _State(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)

    def after_fork(self) -> None:
        """Note that the thread has stayed in the parent process."""
        stopped = self._stop.is_set()
        self._stop = threading.Event()
        if stopped:
            self._stop.set()
        self.asleep = not stopped


# Weak: one registration for all of them, however often a process is instrumented.
_watches: weakref.WeakSet[FileWatch] = weakref.WeakSet()


def _after_fork() -> None:
    for watch in tuple(_watches):
        watch.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
