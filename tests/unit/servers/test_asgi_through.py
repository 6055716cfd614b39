"""What is nobody's business passes through."""

from __future__ import annotations

import asyncio
import logging
import threading
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
from hangup import config
from hangup.servers.asgi import HangupMiddleware, RouteSettings

if TYPE_CHECKING:
    from support.asgi import Journal, Receive, Scope, Send


def test_other_scopes_pass_straight_through() -> None:
    seen: list[tuple[object, ...]] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append((scope, receive, send))
        assert hangup.current_run() is None

    peer = Peer()
    scope: Scope = {"type": "something-new"}
    asyncio.run(HangupMiddleware(app)(scope, peer.receive, peer.send))
    assert seen == [(scope, peer.receive, peer.send)]


@pytest.mark.parametrize("where", ["middleware", "ceiling", "route"])
def test_mode_off_passes_straight_through(where: str) -> None:
    seen: list[tuple[object, ...]] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append((receive, send))
        assert hangup.current_run() is None

    choices: dict[str, dict[str, Any]] = {
        "middleware": {"mode": "off"},
        "ceiling": {},
        "route": {"routes": {"/": RouteSettings(mode="off")}},
    }
    options = choices[where]
    if where == "ceiling":
        config.use(config.Settings(mode=config.Mode.OFF))
    peer = Peer()
    asyncio.run(HangupMiddleware(app, **options)(http_scope(), peer.receive, peer.send))
    assert seen == [(peer.receive, peer.send)]


def test_a_latent_request_finishes_after_its_client_left_and_counts_nowhere(
    journal: Journal,
) -> None:
    written: list[bytes] = []

    async def save(scope: Scope, receive: Receive, send: Send) -> None:
        data = (await receive())["body"]
        assert (await receive()) == HTTP_DISCONNECT
        await ticks()
        written.append(data)
        await reply(send)

    async def test() -> None:
        scope = http_scope("/save", "POST", content_length="5")
        tasks = asyncio.all_tasks()
        peer = await serve(
            HangupMiddleware(save, budget=0.0), scope, body(b"hello"), HTTP_DISCONNECT
        )
        assert asyncio.all_tasks() == tasks
        assert peer.sent == [start(), chunk(b"done")]

    asyncio.run(test())
    assert written == [b"hello"]
    assert journal.events == []


def test_a_latent_request_is_handed_the_messages_and_nothing_else(
    journal: Journal,
) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        assert asyncio.all_tasks() == {asyncio.current_task()}
        await reply(send)

    async def test() -> None:
        peer = await serve(HangupMiddleware(app), http_scope(), body())
        assert peer.asked == 0

    asyncio.run(test())
    assert journal.events == []


def test_a_middleware_inside_another_passes_through_and_says_so_once(
    journal: Journal, caplog: pytest.LogCaptureFixture
) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        spend()
        await reply(send)

    async def test() -> None:
        nested = HangupMiddleware(HangupMiddleware(app, budget=3), name="outer")
        for _ in range(2):
            await serve(nested, http_scope(), body())

    with caplog.at_level(logging.WARNING):
        asyncio.run(test())
    assert journal.events == [("started", "outer"), ("delivered", "outer")] * 2
    assert len(caplog.records) == 1


def test_one_middleware_serves_several_loops(journal: Journal) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        spend()
        await reply(send)

    middleware = HangupMiddleware(app)

    def loop() -> None:
        asyncio.run(serve(middleware, http_scope(), body()))

    threads = [threading.Thread(target=loop) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert journal.fates == [("delivered",)] * 4
