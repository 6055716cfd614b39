"""Warnings that are worth saying once per process, however often the cause recurs."""

from __future__ import annotations

import logging

_logger = logging.getLogger("hangup")
_said: set[str] = set()


def warn_once(topic: str, message: str, *args: object) -> None:
    """Log ``message % args`` as a warning, the first time for this ``topic``.

    Thread-safe. ``topic`` must come from a closed list: it is remembered for ever.
    """
    # No lock: at worst two threads say it at the same moment, and no fork can find one
    # taken.
    if topic in _said:
        return
    _said.add(topic)
    _logger.warning(message, *args)


def forget() -> None:
    """Say everything once more; for tests."""
    _said.clear()
