"""Who ended the conversation, and how a stopped one is closed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from support.asgi import Peer, socket_scope, spend, ticks

import hangup
from hangup.core.opening import open_call
from hangup.servers.asgi import HangupMiddleware

if TYPE_CHECKING:
    from support.asgi import Journal, Message, Receive, Scope, Send

    from hangup.core.run import Run

CONNECT = {"type": "websocket.connect"}
ACCEPT = {"type": "websocket.accept"}
AWAY = {"type": "websocket.disconnect", "code": 1001}


def hello(text: str = "hello") -> dict[str, Any]:
    return {"type": "websocket.receive", "text": text}


def say(text: str) -> dict[str, Any]:
    return {"type": "websocket.send", "text": text}


def test_a_close_stops_a_handler_that_does_not_receive(journal: Journal) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        assert await receive() == CONNECT
        await send(ACCEPT)
        spend()
        await asyncio.Event().wait()

    async def test() -> None:
        peer = Peer(CONNECT)
        serving = asyncio.create_task(
            HangupMiddleware(app)(socket_scope(), peer.receive, peer.send)
        )
        await ticks()
        peer.feed(AWAY)
        await serving
        assert peer.sent == [ACCEPT]
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(test())
    assert journal.fates == [("abandoned", "disconnect")]


def test_a_close_with_a_spending_call_open_is_a_disconnect(journal: Journal) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        assert await receive() == CONNECT
        run = spend()
        open_call(run)
        await receive()

    async def test() -> None:
        peer = Peer(CONNECT)
        serving = asyncio.create_task(
            HangupMiddleware(app)(socket_scope(), peer.receive, peer.send)
        )
        await ticks()
        peer.feed(AWAY)
        await serving

    asyncio.run(test())
    assert journal.fates == [("abandoned", "disconnect")]


def test_a_close_while_the_handler_waits_for_the_next_message_ends_well(
    journal: Journal,
) -> None:
    got: list[Message] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        assert await receive() == CONNECT
        await send(ACCEPT)
        while (message := await receive())["type"] == "websocket.receive":
            got.append(message)
            spend()
            await send(say("answer"))
        got.append(message)
        # A summary of the conversation, say, is no work of the run.
        assert hangup.current_run() is None
        hangup.check()

    async def test() -> None:
        peer = Peer(CONNECT, hello("1"), hello("2"))
        serving = asyncio.create_task(
            HangupMiddleware(app)(socket_scope(), peer.receive, peer.send)
        )
        await ticks()
        assert peer.sent == [ACCEPT, say("answer"), say("answer")]
        peer.feed(AWAY)
        await serving

    asyncio.run(test())
    assert got == [hello("1"), hello("2"), AWAY]
    assert journal.fates == [("delivered",)]


def test_a_close_behind_unread_messages_is_a_disconnect(journal: Journal) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        assert await receive() == CONNECT
        spend()
        await asyncio.Event().wait()

    async def test() -> None:
        peer = Peer(CONNECT, hello("1"), hello("2"), AWAY)
        await HangupMiddleware(app)(socket_scope(), peer.receive, peer.send)

    asyncio.run(test())
    assert journal.fates == [("abandoned", "disconnect")]


@pytest.mark.parametrize(
    ("code", "fate"),
    [(1000, ("delivered",)), (1011, ("abandoned", "failed"))],
)
def test_the_handler_closing_ends_the_run(
    journal: Journal, code: int, fate: tuple[str, ...]
) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        spend()
        await send({"type": "websocket.close", "code": code})
        # Servers report their own close as a disconnect.
        assert (await receive())["type"] == "websocket.disconnect"

    async def test() -> None:
        peer = Peer(AWAY)
        await HangupMiddleware(app)(socket_scope(), peer.receive, peer.send)

    asyncio.run(test())
    assert journal.fates == [fate]


@pytest.mark.parametrize(
    ("status", "fate"),
    [(401, ("delivered",)), (500, ("abandoned", "failed"))],
)
def test_a_denial_response_ends_the_run(
    journal: Journal, status: int, fate: tuple[str, ...]
) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        spend()
        await send({"type": "websocket.http.response.start", "status": status})
        await send({"type": "websocket.http.response.body", "body": b"no"})

    async def test() -> None:
        peer = Peer(CONNECT)
        await HangupMiddleware(app)(socket_scope(), peer.receive, peer.send)

    asyncio.run(test())
    assert journal.fates == [fate]


def test_a_handler_that_returns_has_said_all(journal: Journal) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        spend()

    async def test() -> None:
        peer = Peer(CONNECT)
        await HangupMiddleware(app)(socket_scope(), peer.receive, peer.send)
        assert peer.sent == []

    asyncio.run(test())
    assert journal.fates == [("delivered",)]


@pytest.mark.parametrize("accepted", [False, True])
@pytest.mark.parametrize(
    ("cause", "code"),
    [("deadline", 4504), ("killed", 4409), ("superseded", 4409), ("shutdown", 1012)],
)
def test_a_stopped_run_closes_the_connection_with_its_cause(
    journal: Journal, cause: str, code: int, *, accepted: bool
) -> None:
    runs: list[Run] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if accepted:
            await send(ACCEPT)
        runs.append(spend())
        try:
            await asyncio.Event().wait()
        finally:
            await send(say("too late"))

    async def test() -> None:
        peer = Peer(CONNECT)
        serving = asyncio.create_task(
            HangupMiddleware(app)(socket_scope(), peer.receive, peer.send)
        )
        await ticks()
        runs[0].cancel(cause)
        await serving
        close = {"type": "websocket.close", "code": code, "reason": cause}
        assert peer.sent == ([ACCEPT] if accepted else []) + [close]

    asyncio.run(test())
    assert journal.fates == [("abandoned", cause)]


def test_the_default_budget_is_not_for_websockets() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        run = spend()
        assert not run.deadline.is_set

    async def test() -> None:
        peer = Peer(CONNECT)
        await HangupMiddleware(app, budget=30)(socket_scope(), peer.receive, peer.send)

    asyncio.run(test())
