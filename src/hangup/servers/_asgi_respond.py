"""What the caller of an abandoned run is told, as ASGI messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hangup.servers import _common_respond
from hangup.servers._common_respond import CLOSE_CODE, SETTLE_FIELD, answer

if TYPE_CHECKING:
    from hangup.core.cause import Cause
    from hangup.servers._asgi_receive import Message
    from hangup.servers._common_respond import Answer

SETTLE_HEADER: Final = (SETTLE_FIELD[0].encode(), SETTLE_FIELD[1].encode())
"""On the response of a joined run: its fate is held until the caller tells it."""

# No server knows this message: each fails on it. A middleware around us that would end
# the body cleanly for want of more (Starlette's BaseHTTPMiddleware) then closes the
# connection unfinished instead.
UNFINISHED: Final = {"type": "hangup.response.unfinished", "more_body": True}


def response(cause: Cause) -> tuple[Message, Message]:
    """Return the two messages of the HTTP response."""
    return _messages(answer(cause))


def to_nobody() -> tuple[Message, Message]:
    """Return a response for what stands around us, when the caller is gone."""
    return _messages(_common_respond.to_nobody())


def _messages(given: Answer) -> tuple[Message, Message]:
    status, _, headers, body = given
    start = {
        "type": "http.response.start",
        "status": status,
        "headers": [(name.encode(), value.encode()) for name, value in headers],
    }
    return start, {"type": "http.response.body", "body": body, "more_body": False}


def closing(cause: Cause) -> Message:
    """Return the message that closes a WebSocket, accepted or not."""
    return {
        "type": "websocket.close",
        "code": CLOSE_CODE[cause],
        "reason": cause.value,
    }
