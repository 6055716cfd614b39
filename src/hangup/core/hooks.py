"""Functions to be called once, when something has happened."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from hangup.core.guard import guarded, guarded_each

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

T = TypeVar("T")


class Hooks(Generic[T]):
    """Calls each of its functions once. Thread-safe; calls outside the lock.

    Args:
        lock: Guards it; may be that of its owner.
    """

    __slots__ = ("_lock", "_waiting")

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock
        self._waiting: list[Callable[[T], None]] | None = []

    def add(self, callback: Callable[[T], None], subject: T) -> Callable[[], None]:
        """Call ``callback`` when it happens; at once if it has.

        Args:
            callback: Gets the subject.
            subject: What it is about.

        Returns:
            A function that forgets the callback. Idempotent.
        """
        with self._lock:
            waiting = self._waiting
            if waiting is not None:
                waiting.append(callback)
        if waiting is None:
            guarded(callback, subject)
            return lambda: None

        def forget() -> None:
            with self._lock:
                if callback in waiting:
                    waiting.remove(callback)

        return forget

    def happened(self, subject: T) -> None:
        """Call them all. A second time it does nothing."""
        with self._lock:
            waiting, self._waiting = self._waiting, None
        guarded_each(waiting or (), subject)
