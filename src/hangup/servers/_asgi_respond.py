"""What the caller of an abandoned run is told, by cause.

========== ============== ===============
cause      HTTP           WebSocket close
========== ============== ===============
deadline   504            4504
killed     409            4409
superseded 409            4409
shutdown   503            1012
failed     500            1011
disconnect nothing        nothing
========== ============== ===============

A middleware around us that waits for a response gets one of status 499 when the client
is gone; nobody else sees it. A caller who is still connected although the run is
abandoned with ``disconnect`` (the user behind them left) is told like one whose run was
killed. The reason of a WebSocket close is the cause.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from hangup.core.cause import Cause

if TYPE_CHECKING:
    from hangup.servers._asgi_receive import Message

CAUSE_HEADER: Final = b"hangup-cause"
SETTLE_HEADER: Final = (b"hangup-settle", b"1")
"""On the response of a joined run: its fate is held until the caller tells it."""

_RETRY_AFTER_SECONDS = 1
_CLOSED = 499

_STATUS: Final = {
    Cause.DEADLINE: 504,
    Cause.KILLED: 409,
    Cause.SUPERSEDED: 409,
    Cause.SHUTDOWN: 503,
    Cause.FAILED: 500,
    Cause.DISCONNECT: 409,
}
_CLOSE_CODE: Final = {
    Cause.DEADLINE: 4504,
    Cause.KILLED: 4409,
    Cause.SUPERSEDED: 4409,
    Cause.SHUTDOWN: 1012,
    Cause.FAILED: 1011,
    Cause.DISCONNECT: 4409,
}
_TEXT: Final = {
    Cause.DEADLINE: "The deadline passed before there was an answer.",
    Cause.KILLED: "The run was stopped.",
    Cause.SUPERSEDED: "A newer request took the place of this one.",
    Cause.SHUTDOWN: "The server is shutting down; try again.",
    Cause.FAILED: "The run failed.",
    Cause.DISCONNECT: "The run was abandoned: its user left.",
}

# No server knows this message: each fails on it. A middleware around us that would end
# the body cleanly for want of more (Starlette's BaseHTTPMiddleware) then closes the
# connection unfinished instead.
UNFINISHED: Final = {"type": "hangup.response.unfinished", "more_body": True}


def response(cause: Cause) -> tuple[Message, Message]:
    """Return the two messages of the HTTP response. Says nothing secret."""
    body = json.dumps({"error": cause.value, "message": _TEXT[cause]}).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (CAUSE_HEADER, cause.value.encode()),
    ]
    if cause is Cause.SHUTDOWN:
        headers.append((b"retry-after", str(_RETRY_AFTER_SECONDS).encode()))
    start = {
        "type": "http.response.start",
        "status": _STATUS[cause],
        "headers": headers,
    }
    return start, {"type": "http.response.body", "body": body, "more_body": False}


def to_nobody() -> tuple[Message, Message]:
    """Return a response for what stands around us, when the caller is gone.

    With the status that proxies log for such requests (nginx: client closed request).
    """
    headers = [
        (b"content-length", b"0"),
        (CAUSE_HEADER, Cause.DISCONNECT.value.encode()),
    ]
    start = {"type": "http.response.start", "status": _CLOSED, "headers": headers}
    return start, {"type": "http.response.body", "body": b"", "more_body": False}


def closing(cause: Cause) -> Message:
    """Return the message that closes a WebSocket, accepted or not."""
    return {
        "type": "websocket.close",
        "code": _CLOSE_CODE[cause],
        "reason": cause.value,
    }
