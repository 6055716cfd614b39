"""The threads of a member: where one is missing, it is started again."""

from __future__ import annotations

import contextvars
import logging
import threading
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_logger = logging.getLogger("hangup")

AGAIN: Final = 1.0
"""Seconds between two attempts to start threads where none can be started, at least."""


class Threads:
    """Daemon threads that are to run all the while. Thread-safe; blocks for nothing.

    Args:
        works: What each does, by its name. It ends when it is told to.
        fell: Called with the name of one that ends, by that thread.
    """

    def __init__(
        self, works: Mapping[str, Callable[[], None]], fell: Callable[[str], None]
    ) -> None:
        self._works = works
        self._fell = fell
        self.after_fork()

    def after_fork(self) -> None:
        """Begin anew: in a child process none of them runs."""
        self._running: dict[str, threading.Thread] = {}
        self._lock = threading.Lock()
        self._again_at = 0.0
        self._said = False

    @property
    def whole(self) -> bool:
        """Whether all of them run."""
        running = list(self._running.values())  # at once: they come and go
        return len(running) == len(self._works) and all(
            thread.is_alive() for thread in running
        )

    def start(self) -> bool:
        """Start those that do not run. Idempotent.

        Returns:
            Whether all of them run. Where not, ask again: nobody else tries.
        """
        if self.whole:
            return True
        # Who is in here already sees to it; a thread that starts may ask, too.
        if not self._lock.acquire(blocking=False):
            return self.whole
        try:
            if time.monotonic() < self._again_at:
                return False
            faults = [self._start(name) for name in self._works]
        finally:
            self._lock.release()
        fault = next(filter(None, faults), None)
        if fault is None:
            self._said = False
            return True
        self._again_at = time.monotonic() + AGAIN
        if not self._said and threading.main_thread().is_alive():
            self._said = True
            _logger.warning(
                "hangup cannot start the threads of its bus (%s) and tries again; work "
                "goes on, under its own deadline",
                fault,
            )
        return False

    def _start(self, name: str) -> RuntimeError | None:
        """Start one that does not run; return why it cannot be."""
        before = self._running.get(name)
        if before is not None and before.is_alive():
            return None
        thread = threading.Thread(
            target=self._run, args=(name,), name=f"hangup-bus-{name}", daemon=True
        )
        self._running[name] = thread  # first: it may end at once
        try:
            # In no run's context, whoever is the first to need it.
            contextvars.Context().run(thread.start)
        except RuntimeError as error:  # there are too many, or the interpreter ends
            return error
        return None

    def _run(self, name: str) -> None:
        try:
            self._works[name]()
        finally:
            # It counts as alive for a moment yet.
            if self._running.get(name) is threading.current_thread():
                del self._running[name]
            self._fell(name)
