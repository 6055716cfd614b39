"""Whose run it is, when it ends, and that a latent one is nobody's business."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from support.asgi import (
    HTTP_DISCONNECT,
    Peer,
    body,
    chunk,
    http_scope,
    reply,
    serve,
    spend,
    start,
    ticks,
)

import hangup
from hangup.servers.asgi import HangupMiddleware

if TYPE_CHECKING:
    from support.asgi import Journal, Message, Receive, Scope, Send


def test_the_client_leaving_stops_a_handler_that_never_receives(
    journal: Journal,
) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        spend()
        await asyncio.Event().wait()

    async def test() -> None:
        peer = Peer(body())
        serving = asyncio.create_task(
            HangupMiddleware(app)(http_scope(), peer.receive, peer.send)
        )
        await ticks()
        assert not serving.done()
        peer.feed(HTTP_DISCONNECT)
        await serving
        assert peer.sent == []
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(test())
    assert journal.fates == [("abandoned", "disconnect")]
    assert journal.runs[0].caller == "gone"


def test_in_observe_the_client_leaving_is_recorded_and_nothing_is_stopped(
    journal: Journal,
) -> None:
    left = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        spend()
        await left.wait()
        await ticks()
        spend()
        await reply(send)

    async def test() -> None:
        peer = Peer(body())
        app_ = HangupMiddleware(app, mode="observe", budget=0.0)
        serving = asyncio.create_task(app_(http_scope(), peer.receive, peer.send))
        await ticks()
        peer.feed(HTTP_DISCONNECT)
        left.set()
        await serving
        assert peer.sent == [start(), chunk(b"done")]

    asyncio.run(test())
    assert journal.fates == [("abandoned", "disconnect")]


def test_a_client_that_left_a_latent_run_is_remembered_when_it_spends(
    journal: Journal,
) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        assert await receive() == HTTP_DISCONNECT
        spend()
        raise AssertionError

    async def test() -> None:
        peer = await serve(HangupMiddleware(app), http_scope(), HTTP_DISCONNECT)
        assert peer.sent == []

    asyncio.run(test())
    assert journal.fates == [("abandoned", "disconnect")]


def test_spending_on_another_thread_starts_the_watch(journal: Journal) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await asyncio.to_thread(spend)
        await asyncio.Event().wait()

    async def test() -> None:
        peer = Peer(body(), HTTP_DISCONNECT)
        await HangupMiddleware(app)(http_scope(), peer.receive, peer.send)

    asyncio.run(test())
    assert journal.fates == [("abandoned", "disconnect")]


def test_the_end_of_the_response_is_not_the_client_leaving(journal: Journal) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        run = spend()
        await reply(send)
        assert run.delivered_at is not None
        await ticks()
        # Background work, after delivery, is no work of the run.
        assert hangup.current_run() is None
        hangup.check()

    async def test() -> None:
        peer = Peer(body())

        async def send(message: Message) -> None:
            await peer.send(message)
            if not message.get("more_body", True):
                # As a server does, and before our send has returned.
                peer.feed(HTTP_DISCONNECT)
                await ticks()

        await HangupMiddleware(app)(http_scope(), peer.receive, send)
        assert peer.sent == [start(), chunk(b"done")]
        assert peer.unread == 0

    asyncio.run(test())
    assert journal.fates == [("delivered",)]


def test_the_run_is_delivered_when_the_server_has_taken_the_last_byte() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        run = spend()
        await send(start())
        await send(chunk(b"1", more=True))
        assert run.delivered_at is None
        await send(chunk(b"2"))
        assert run.delivered_at is not None

    async def test() -> None:
        taken = asyncio.Event()
        peer = Peer(body())

        async def send(message: Message) -> None:
            await peer.send(message)
            if len(peer.sent) == 3:
                run = hangup.current_run()
                assert run is not None
                assert run.delivered_at is None
                taken.set()

        await HangupMiddleware(app)(http_scope(), peer.receive, send)
        assert taken.is_set()

    asyncio.run(test())


@pytest.mark.parametrize(
    ("first", "messages"),
    [
        ({}, [{"type": "http.response.pathsend", "path": "/x"}]),
        ({}, [{"type": "http.response.zerocopysend", "file": 3}]),
        (
            {"trailers": True},
            [chunk(b"all"), {"type": "http.response.trailers", "headers": []}],
        ),
    ],
    ids=["pathsend", "zerocopysend", "trailers"],
)
def test_the_extensions_end_a_response_too(
    journal: Journal, first: dict[str, Any], messages: list[dict[str, Any]]
) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        run = spend()
        await send({**start(), **first})
        for message in messages:
            assert run.delivered_at is None
            await send(message)

    asyncio.run(serve(HangupMiddleware(app), http_scope(), body()))
    assert journal.fates == [("delivered",)]


def test_a_send_that_says_the_client_is_gone_abandons_the_run(journal: Journal) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        spend()
        await send(start())
        with pytest.raises(OSError, match="gone"):
            await send(chunk(b"1", more=True))

    async def test() -> None:
        peer = Peer(body())

        async def send(message: Message) -> None:
            if message["type"] == "http.response.body":
                raise ConnectionResetError("gone")
            await peer.send(message)

        await HangupMiddleware(app)(http_scope(), peer.receive, send)

    asyncio.run(test())
    assert journal.fates == [("abandoned", "disconnect")]


@pytest.mark.parametrize("status", [500, 503])
def test_a_status_of_500_and_above_fails_the_run_after_its_last_byte(
    journal: Journal, status: int
) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        run = spend()
        await send(start(status))
        assert run.abandonment is None
        await send(chunk(b"oh"))

    async def test() -> None:
        peer = await serve(HangupMiddleware(app), http_scope(), body())
        assert peer.sent == [start(status), chunk(b"oh")]

    asyncio.run(test())
    assert journal.fates == [("abandoned", "failed")]


def test_an_error_of_the_application_reaches_the_server_unchanged(
    journal: Journal,
) -> None:
    fault = ValueError("the application's")

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        spend()
        raise fault

    async def test() -> None:
        peer = Peer(body())
        with pytest.raises(ValueError, match="the application's") as raised:
            await HangupMiddleware(app)(http_scope(), peer.receive, peer.send)
        assert raised.value is fault
        assert peer.sent == []

    asyncio.run(test())
    assert journal.fates == [("abandoned", "failed")]


def test_a_response_left_incomplete_by_the_application_fails_the_run(
    journal: Journal,
) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        spend()
        await send(start())

    asyncio.run(serve(HangupMiddleware(app), http_scope(), body()))
    assert journal.fates == [("abandoned", "failed")]


def test_a_cancel_from_the_server_stays_a_cancel() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        spend()
        await asyncio.Event().wait()

    async def test() -> None:
        peer = Peer(body())
        serving = asyncio.create_task(
            HangupMiddleware(app)(http_scope(), peer.receive, peer.send)
        )
        await ticks()
        serving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await serving
        assert peer.sent == []
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(test())


def test_a_run_opened_in_the_handler_is_stopped_with_the_request(
    journal: Journal,
) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        async with hangup.run(name="inner"):
            spend()
            await asyncio.Event().wait()

    async def test() -> None:
        peer = Peer(body(), HTTP_DISCONNECT)
        serving = asyncio.create_task(
            HangupMiddleware(app, name="outer")(http_scope(), peer.receive, peer.send)
        )
        await ticks()
        assert serving.done()
        await serving

    asyncio.run(test())
    assert ("abandoned", "outer", "disconnect") in journal.events


def test_the_connection_is_kept_until_the_answer_is_out() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        spend().cancel("killed")
        await asyncio.Event().wait()

    async def test() -> None:
        peer, drained = Peer(body()), asyncio.Event()

        async def send(message: Message) -> None:
            await drained.wait()
            await peer.send(message)

        serving = asyncio.create_task(
            HangupMiddleware(app)(http_scope(), peer.receive, send)
        )
        await ticks()
        assert not serving.done()
        drained.set()
        await serving
        assert peer.status == 409
        assert len(peer.sent) == 2

    asyncio.run(test())
