"""The endpoint where other processes tell what became of answers given here."""

from __future__ import annotations

from typing import Final

from hangup import config
from hangup.config import Mode
from hangup.otel import settlement
from hangup.otel.notices import MAX_BODY, SETTLE_PATH

_NO_CONTENT: Final = 204
_BAD_REQUEST: Final = 400


def addressed(method: str, path: str, root: str) -> bool:
    """Whether a request that carries the mark of a notice is one.

    Args:
        method: Of HTTP.
        path: The whole path.
        root: What of it leads to the application.
    """
    return (
        path.endswith(SETTLE_PATH)
        and path.removeprefix(root) == SETTLE_PATH
        and method == "POST"
        and config.current().mode is not Mode.OFF
    )


def take(body: bytes) -> int:
    """Take the notices; return the status: 400 for a body malformed or too long."""
    taken = len(body) <= MAX_BODY and settlement.receive_body(body)
    return _NO_CONTENT if taken else _BAD_REQUEST
