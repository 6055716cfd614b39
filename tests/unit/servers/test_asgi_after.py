"""What a request does after its last byte: no part of its run, unless asked for."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from support.asgi import HTTP_DISCONNECT, Peer, body, http_scope, reply, spend, ticks

import hangup
from hangup.servers.asgi import HangupMiddleware

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.asgi import Journal, ManualClock, Receive, Scope, Send

ROUTE = {"/": {"background_in_run": True}}


async def served(app: Callable[..., object], peer: Peer, **options: object) -> None:
    """Serve one request to the end of its background work."""
    wrapped = HangupMiddleware(app, **options)  # type: ignore[arg-type]
    await wrapped(http_scope(), peer.receive, peer.send)


@pytest.mark.parametrize("options", [{"background_in_run": True}, {"routes": ROUTE}])
def test_asked_for_it_is_part_of_the_run(
    journal: Journal, options: dict[str, object]
) -> None:
    during: list[object] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        spend()
        await reply(send)
        during.append((hangup.current_run(), list(journal.fates)))

    asyncio.run(served(app, Peer(body()), **options))
    assert during == [(journal.runs[0], [])]
    assert journal.fates == [("delivered",)]


def test_a_route_may_leave_it_out_again(journal: Journal) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        spend()
        await reply(send)
        assert hangup.current_run() is None

    route = {"/": {"background_in_run": False}}
    peer = Peer(body())
    asyncio.run(served(app, peer, routes=route, background_in_run=True))
    assert journal.fates == [("delivered",)]


def test_its_first_spending_call_may_come_after_the_answer(journal: Journal) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await reply(send)
        spend()

    asyncio.run(served(app, Peer(body()), background_in_run=True))
    assert journal.fates == [("delivered",)]


def test_the_client_who_has_the_answer_may_leave(journal: Journal) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        spend()
        await reply(send)
        peer.feed(HTTP_DISCONNECT)
        await ticks()
        spend()

    peer = Peer(body())
    asyncio.run(served(app, peer, background_in_run=True))
    assert journal.fates == [("delivered",)]


def test_the_deadline_stops_it_and_says_nothing_more_to_the_client(
    journal: Journal, clock: ManualClock
) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        spend()
        await reply(send)
        answered.set()
        await asyncio.Event().wait()

    async def test() -> None:
        peer = Peer(body())
        wrapped = HangupMiddleware(app, background_in_run=True, budget=3)
        wrapped._terms._clock = clock
        serving = asyncio.create_task(wrapped(http_scope(), peer.receive, peer.send))
        await answered.wait()
        clock.advance(3)
        await serving
        assert [message["type"] for message in peer.sent] == [
            "http.response.start",
            "http.response.body",
        ]

    answered = asyncio.Event()
    asyncio.run(test())
    assert journal.fates == [("abandoned", "deadline")]


def test_an_error_in_it_fails_the_run(journal: Journal) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        spend()
        await reply(send)
        raise LookupError("in the background")

    with pytest.raises(LookupError):
        asyncio.run(served(app, Peer(body()), background_in_run=True))
    assert journal.fates == [("abandoned", "failed")]


def test_a_run_that_never_spends_is_nobodys_business(journal: Journal) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await reply(send)

    asyncio.run(served(app, Peer(body()), background_in_run=True))
    assert journal.events == []
