"""Warnings that are worth saying once per process, however often the cause recurs."""

from __future__ import annotations

import logging
import threading

_logger = logging.getLogger("hangup")
_lock = threading.Lock()
_said: set[str] = set()


def warn_once(topic: str, message: str, *args: object) -> None:
    """Log ``message % args`` as a warning, the first time for this ``topic``.

    Thread-safe. ``topic`` must come from a closed list: it is remembered for ever.
    """
    with _lock:
        if topic in _said:
            return
        _said.add(topic)
    _logger.warning(message, *args)


def forget() -> None:
    """Say everything once more; for tests."""
    with _lock:
        _said.clear()
