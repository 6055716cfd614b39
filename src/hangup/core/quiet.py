"""No log line for a stop that a library hands to its event loop.

Some tell the loop of whatever a task of theirs ended with once nobody waits for it any
more, and asyncio logs that as an error with a traceback (the OpenAI Agents SDK does so
of tools whose run was cancelled). That a task was stopped is no error and no news.
asyncio and uvloop both say it on the logger ``asyncio``.
"""

from __future__ import annotations

import logging
from typing import Final

from hangup.errors import Stop

_logger: Final = logging.getLogger("asyncio")


def _is_news(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, Stop)


def install() -> None:
    """Drop what the loop would log of a :class:`~hangup.Stop`. Idempotent."""
    _logger.addFilter(_is_news)


def uninstall() -> None:
    """Log again. Idempotent."""
    _logger.removeFilter(_is_news)
