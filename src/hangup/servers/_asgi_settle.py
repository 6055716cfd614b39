"""The endpoint where other processes tell what became of answers given here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hangup import config
from hangup.config import Mode
from hangup.otel import settlement
from hangup.otel.notices import MAX_BODY, SETTLE_HEADER, SETTLE_PATH

if TYPE_CHECKING:
    from hangup.servers._asgi_exchange import Send
    from hangup.servers._asgi_receive import Receive, Scope

_MARK: Final = (SETTLE_HEADER.encode(), b"1")
_NO_CONTENT: Final = 204
_BAD_REQUEST: Final = 400


def is_settlement(scope: Scope) -> bool:
    """Whether the request carries notices for us and not for the application."""
    return (
        scope["path"].endswith(SETTLE_PATH)
        and scope["path"].removeprefix(scope.get("root_path", "")) == SETTLE_PATH
        and scope["method"] == "POST"
        and _MARK in [tuple(field) for field in scope["headers"]]
        and config.current().mode is not Mode.OFF
    )


async def serve(receive: Receive, send: Send) -> None:
    """Take the notices; answer 204, or 400 to a body that is malformed or too long."""
    body = await _read(receive)
    if body is None:
        return
    taken = len(body) <= MAX_BODY and settlement.receive_body(body)
    await send(
        {
            "type": "http.response.start",
            "status": _NO_CONTENT if taken else _BAD_REQUEST,
            "headers": [] if taken else [(b"content-length", b"0")],
        }
    )
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _read(receive: Receive) -> bytes | None:
    """Return the body, or as much of it as shows it too long; None if cut off."""
    body = bytearray()
    while len(body) <= MAX_BODY:
        message = await receive()
        if message["type"] != "http.request":
            return None
        body += message.get("body", b"")
        if not message.get("more_body", False):
            break
    return bytes(body)
