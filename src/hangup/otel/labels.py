"""Label values that stay few: the first so many, then ``other``."""

from __future__ import annotations

import threading

from hangup.otel.names import OTHER


class FewValues:
    """Admits the first ``limit`` distinct values; every later one is ``other``.

    Thread-safe. An admitted value stays admitted, so that no series ever moves.
    """

    __slots__ = ("_admitted", "_limit", "_lock")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._admitted: set[str] = set()
        self._lock = threading.Lock()

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
