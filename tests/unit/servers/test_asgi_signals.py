"""A signal starts the time that runs have left; the server's own handler is called."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from support.asgi import Peer, body, http_scope, socket_scope, spend, ticks

from hangup.errors import ConfigError
from hangup.servers import _asgi_signals
from hangup.servers.asgi import HangupMiddleware

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.asgi import Journal, Message, Receive, Scope, Send


@pytest.fixture
def told() -> Iterator[list[int]]:
    """What the handler that was there before, the server's, has heard."""
    heard: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _frame: heard.append(number))
    yield heard
    signal.signal(signal.SIGTERM, before)
    _asgi_signals._Process.told = _asgi_signals._Process.over = False


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "lifespan":
        for kind in ("startup", "shutdown"):
            await receive()
            await send({"type": f"lifespan.{kind}.complete"})
        return
    if scope["path"] == "/later":
        await asyncio.Event().wait()
    spend()
    await asyncio.Event().wait()


async def lifespan(application: Any, peer: Peer) -> asyncio.Task[None]:
    peer.feed({"type": "lifespan.startup"})
    serving = application({"type": "lifespan"}, peer.receive, peer.send)
    task: asyncio.Task[None] = asyncio.ensure_future(serving)
    await peer.said(1)
    return task


def test_when_the_time_is_up_runs_are_told_and_none_begins(
    told: list[int], journal: Journal
) -> None:
    async def test() -> None:
        application = HangupMiddleware(app, shutdown_after=0)
        server = Peer()
        living = await lifespan(application, server)
        first, second = Peer(body()), Peer(body())
        serving = asyncio.ensure_future(
            application(http_scope(), first.receive, first.send)
        )
        await asyncio.sleep(0)
        os.kill(os.getpid(), signal.SIGTERM)
        await serving
        await application(http_scope(), second.receive, second.send)
        server.feed({"type": "lifespan.shutdown"})
        await living
        for peer in (first, second):
            assert peer.status == 503
            assert peer.header("retry-after") == "1"

    asyncio.run(test())
    assert told == [signal.SIGTERM]
    assert journal.fates == [("abandoned", "shutdown")] * 2


def test_the_handlers_are_put_back(told: list[int]) -> None:
    before = signal.getsignal(signal.SIGTERM)

    async def test() -> None:
        server = Peer()
        living = await lifespan(HangupMiddleware(app, shutdown_after=60), server)
        assert signal.getsignal(signal.SIGTERM) != before
        server.feed({"type": "lifespan.shutdown"})
        await living

    asyncio.run(test())
    assert signal.getsignal(signal.SIGTERM) == before


def test_who_replaced_the_handler_since_keeps_theirs(told: list[int]) -> None:
    async def test() -> None:
        server = Peer()
        living = await lifespan(HangupMiddleware(app, shutdown_after=60), server)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        server.feed({"type": "lifespan.shutdown"})
        await living
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN

    asyncio.run(test())


def test_a_signal_without_a_handler_is_left_alone() -> None:
    """It would end the process; one of ours would keep it from that."""
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)

    async def test() -> None:
        server = Peer()
        living = await lifespan(HangupMiddleware(app, shutdown_after=60), server)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        living.cancel()
        with suppress(asyncio.CancelledError):
            await living

    asyncio.run(test())
    signal.signal(signal.SIGTERM, before)


def test_a_server_on_another_thread_says_that_it_has_no_effect(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test() -> None:
        server = Peer()
        living = await lifespan(HangupMiddleware(app, shutdown_after=60), server)
        server.feed({"type": "lifespan.shutdown"})
        await living

    thread = threading.Thread(target=asyncio.run, args=(test(),))
    thread.start()
    thread.join()
    assert "shutdown_after has no effect" in caplog.text


class Server:
    """What a handler belongs to, as uvicorn's does."""

    should_exit = False

    def handle_exit(self, number: int, frame: object) -> None:
        self.should_exit = True


def test_who_looks_for_the_server_behind_the_handler_still_finds_it() -> None:
    """sse-starlette does, to end its streams; and so do we, to know why it did."""
    uvicorn = Server()
    before = signal.signal(signal.SIGTERM, uvicorn.handle_exit)

    async def test() -> None:
        server = Peer()
        living = await lifespan(HangupMiddleware(app, shutdown_after=60), server)
        owner = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
        assert owner is uvicorn
        server.feed({"type": "lifespan.shutdown"})
        await living

    try:
        asyncio.run(test())
        assert not _asgi_signals.ending()
        uvicorn.should_exit = True
        assert _asgi_signals.ending()
    finally:
        signal.signal(signal.SIGTERM, before)


async def cut(scope: Scope, receive: Receive, send: Send) -> None:
    """Begin a response, and give up, as sse-starlette does at the signal."""
    spend()
    await send({"type": "http.response.start", "status": 200, "headers": []})


@pytest.mark.parametrize(("ending", "cause"), [(True, "shutdown"), (False, "failed")])
def test_a_stream_that_gives_up_while_the_process_ends_has_not_failed(
    journal: Journal, monkeypatch: pytest.MonkeyPatch, cause: str, *, ending: bool
) -> None:
    monkeypatch.setattr(_asgi_signals, "ending", lambda: ending)

    async def test() -> None:
        peer = Peer(body())
        await HangupMiddleware(cut)(http_scope(), peer.receive, peer.send)

    asyncio.run(test())
    assert journal.fates == [("abandoned", cause)]


class Lifespan:
    """What granian's lifespan belongs to, as far as it matters here."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer

    async def send(self, message: Message) -> None:
        await self._peer.send(message)


Lifespan.__module__ = "granian.asgi"


def test_a_websocket_that_granian_drops_at_the_signal_was_shut_down(
    told: list[int], journal: Journal
) -> None:
    """To the application it looks like a client that left."""

    async def test() -> None:
        application, server, peer = HangupMiddleware(app), Peer(), Peer()
        server.feed({"type": "lifespan.startup"})
        scope = {"type": "lifespan"}
        serving = application(scope, server.receive, Lifespan(server).send)
        living = asyncio.ensure_future(serving)
        await server.said(1)
        talking = asyncio.ensure_future(
            application(socket_scope(), peer.receive, peer.send)
        )
        await ticks()
        os.kill(os.getpid(), signal.SIGTERM)
        peer.feed({"type": "websocket.disconnect", "code": 1006})
        await talking
        server.feed({"type": "lifespan.shutdown"})
        await living

    asyncio.run(test())
    assert told == [signal.SIGTERM]
    assert journal.fates == [("abandoned", "shutdown")]


@pytest.mark.parametrize("seconds", [-1, float("nan"), "soon"])
def test_a_time_that_is_none_is_an_error(seconds: Any) -> None:
    with pytest.raises(ConfigError, match="shutdown_after"):
        HangupMiddleware(app, shutdown_after=seconds)
