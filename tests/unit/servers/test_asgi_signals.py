"""A signal starts the time that runs have left; the server's own handler is called."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from support.asgi import Peer, body, http_scope, spend

from hangup.errors import ConfigError
from hangup.servers import _asgi_signals
from hangup.servers.asgi import HangupMiddleware

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.asgi import Journal, Receive, Scope, Send


@pytest.fixture
def told() -> Iterator[list[int]]:
    """What the handler that was there before, the server's, has heard."""
    heard: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _frame: heard.append(number))
    yield heard
    signal.signal(signal.SIGTERM, before)
    _asgi_signals._Process.over = False


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


@pytest.mark.parametrize("seconds", [-1, float("nan"), "soon"])
def test_a_time_that_is_none_is_an_error(seconds: Any) -> None:
    with pytest.raises(ConfigError, match="shutdown_after"):
        HangupMiddleware(app, shutdown_after=seconds)
