"""Labels that stay few: the first so many values, then ``other``."""

from __future__ import annotations

import threading

from hangup.otel.names import MOST_LABEL_SETS, OTHER


class FewValues:
    """Admits the first ``limit`` distinct values; every later one is ``other``.

    Thread-safe. An admitted value stays admitted, so that no series ever moves.
    """

    __slots__ = ("_admitted", "_limit", "_lock")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._admitted: set[str] = set()
        self._lock = threading.RLock()

    def __call__(self, value: str) -> str:
        """Return ``value`` or ``other``."""
        if value in self._admitted:
            return value
        with self._lock:
            if value not in self._admitted and len(self._admitted) >= self._limit:
                return OTHER
            self._admitted.add(value)
        return value

    def admitted(self) -> tuple[str, ...]:
        """Return the values admitted so far."""
        with self._lock:
            return tuple(self._admitted)

    def after_fork(self) -> None:
        """Take a lock of one's own: somebody may have held the parent's."""
        self._lock = threading.RLock()


class Room:
    """Keeps the label sets of one instrument under the limit of the SDK.

    Past 2,000 the SDK folds whatever is new into one series without labels, and with it
    the rare cause that mattered. So before that, what is new goes by the name ``other``
    and keeps its cause. Thread-safe.

    Args:
        reserved: Label sets that the ones named ``other`` may need.
    """

    __slots__ = ("_admitted", "_free", "_lock")

    def __init__(self, reserved: int) -> None:
        self._free = MOST_LABEL_SETS - reserved
        self._admitted: set[tuple[str, ...]] = set()
        self._lock = threading.RLock()

    def after_fork(self) -> None:
        """Take a lock of one's own: somebody may have held the parent's."""
        self._lock = threading.RLock()

    def has(self, key: tuple[str, ...], label_sets: int) -> bool:
        """Return whether ``key`` has its labels; admit it if its label sets fit in."""
        if key in self._admitted:
            return True
        with self._lock:
            if key not in self._admitted:
                if label_sets > self._free:
                    return False
                self._free -= label_sets
                self._admitted.add(key)
        return True
