"""What a framework says when the application below it was stopped."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from support.asgi import HTTP_DISCONNECT, Peer, body, http_scope, spend, ticks

from hangup.servers.asgi import HangupMiddleware

if TYPE_CHECKING:
    from support.asgi import Journal, Message, Receive, Scope, Send


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """Turn the stop into residue alone, as Starlette's BaseHTTPMiddleware does."""
    if scope["path"] == "/spending":
        spend()
    with suppress(asyncio.CancelledError):
        await receive()
        await receive()
        await ticks()
    raise RuntimeError("No response returned.") from None


async def leave(path: str) -> None:
    peer = Peer(body())
    wrapped = HangupMiddleware(app)
    serving = asyncio.create_task(wrapped(http_scope(path), peer.receive, peer.send))
    await ticks()
    peer.feed(HTTP_DISCONNECT)
    await serving
    assert peer.sent == []


def test_residue_of_a_stop_is_no_fault(journal: Journal) -> None:
    """The server would log it as one, for every client that left."""
    asyncio.run(leave("/spending"))
    assert journal.fates == [("abandoned", "disconnect")]


def test_without_a_stop_it_is_one(journal: Journal) -> None:
    with pytest.raises(RuntimeError, match="No response"):
        asyncio.run(leave("/latent"))
    assert journal.events == []


async def never(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["path"] == "/begun":
        await send({"type": "http.response.start", "status": 200, "headers": []})
    spend()
    await asyncio.Event().wait()


def test_a_middleware_that_waits_for_a_response_gets_one_for_nobody(
    journal: Journal,
) -> None:
    """It would raise, and the server log that, for every client that left."""

    async def keeping(scope: Scope, receive: Receive, send: Send) -> None:
        kept: list[Message] = []

        async def keep(message: Message) -> None:
            kept.append(message)

        await HangupMiddleware(never)(scope, receive, keep)
        messages.extend(kept)

    async def test(path: str) -> None:
        peer = Peer(body(), HTTP_DISCONNECT)
        await keeping(http_scope(path), peer.receive, peer.send)

    messages: list[Message] = []
    asyncio.run(test("/"))
    assert [message.get("status") for message in messages] == [499, None]
    assert not messages[1]["more_body"]
    messages.clear()
    asyncio.run(test("/begun"))
    assert [message.get("status") for message in messages] == [200]
    assert journal.fates == [("abandoned", "disconnect")] * 2


def test_a_server_that_knows_is_told_nothing(journal: Journal) -> None:
    async def test() -> None:
        peer = Peer(body(), HTTP_DISCONNECT)
        await HangupMiddleware(never)(http_scope(), peer.receive, peer.send)
        assert peer.sent == []

    asyncio.run(test())
    assert journal.fates == [("abandoned", "disconnect")]
