"""Notices of other processes over ASGI."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from hangup.otel.notices import MAX_BODY, SETTLE_HEADER
from hangup.servers._common_settle import addressed, take

if TYPE_CHECKING:
    from hangup.servers._asgi_exchange import Send
    from hangup.servers._asgi_receive import Receive, Scope

_MARK: Final = (SETTLE_HEADER.encode(), b"1")


def is_settlement(scope: Scope) -> bool:
    """Whether the request carries notices for us and not for the application."""
    # The path first: nearly no request has it, and each is asked.
    return addressed(
        scope["method"], scope["path"], scope.get("root_path", "")
    ) and _MARK in [tuple(field) for field in scope["headers"]]


async def serve(receive: Receive, send: Send) -> None:
    """Take the notices; answer 204, or 400 to a body that is malformed or too long."""
    body = await _read(receive)
    if body is None:
        return
    status = take(body)
    headers = [] if status == HTTPStatus.NO_CONTENT else [(b"content-length", b"0")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
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
