"""What lives on when its application has ended is abandoned, and is in the books."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

import pytest
from support.asgi import HTTP_DISCONNECT, Peer, body, http_scope, spend, start, ticks
from support.asgi import chunk as response_chunk
from support.telemetry import chat, instrumented, used

import hangup
from hangup.errors import RunAbandoned
from hangup.otel import names
from hangup.servers.asgi import HangupMiddleware

if TYPE_CHECKING:
    from support.asgi import Journal, Receive, Scope, Send

    from hangup.core.run import Run

STARTUP, SHUTDOWN = {"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}
STARTED = {"type": "lifespan.startup.complete"}
ENDED = {"type": "lifespan.shutdown.complete"}


async def lifespan_app(scope: Scope, receive: Receive, send: Send) -> None:
    """Serve the lifespan protocol; a request spends and does not end."""
    if scope["type"] == "lifespan":
        await receive()
        await send(STARTED)
        await receive()
        await send(ENDED)
        return
    spend()
    if scope["path"] == "/begun":
        await send(start())
        await send(response_chunk(b"one", more=True))
    await asyncio.Event().wait()


class Application:
    """An application that a server runs, and then ends; an async context manager."""

    def __init__(self, app: Any = None, **options: Any) -> None:
        self.app = HangupMiddleware(app or lifespan_app, **options)
        self.peer = Peer(STARTUP)
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        scope = {"type": "lifespan"}
        serving = self.app(scope, self.peer.receive, self.peer.send)
        self._task = asyncio.ensure_future(serving)
        await self.peer.said(1)
        return self

    async def __aexit__(self, *_error: object) -> None:
        assert self._task is not None
        self.peer.feed(SHUTDOWN)
        await self._task

    def ask(self, path: str = "/") -> tuple[Peer, asyncio.Task[None]]:
        """Send a request."""
        peer = Peer(body())
        return peer, asyncio.ensure_future(
            self.app(http_scope(path), peer.receive, peer.send)
        )


async def background(stopped: list[str], **options: Any) -> None:
    """Work that no request waits for."""
    with suppress(RunAbandoned):
        async with hangup.run(name="background", **options):
            try:
                await asyncio.Event().wait()
            finally:
                stopped.append("background")


def test_the_protocol_itself_passes_through_unchanged(journal: Journal) -> None:
    async def test() -> None:
        async with Application() as application:
            pass
        assert application.peer.sent == [STARTED, ENDED]

    asyncio.run(test())
    assert journal.events == []


def test_a_request_that_is_still_served_is_told_to_try_again(
    journal: Journal,
) -> None:
    async def test() -> None:
        async with Application() as application:
            peer, serving = application.ask()
            begun, serving_begun = application.ask("/begun")
            await ticks()
        await asyncio.gather(serving, serving_begun)
        assert peer.status == 503
        assert peer.header("retry-after") == "1"
        assert peer.header("hangup-cause") == "shutdown"
        assert begun.sent[-1]["type"] == "hangup.response.unfinished"

    asyncio.run(test())
    assert journal.fates == [("abandoned", "shutdown")] * 2


def test_the_application_has_its_own_shutdown_first(journal: Journal) -> None:
    drained: list[str] = []

    async def job() -> None:
        async with hangup.run(name="job"):
            await ticks()
            hangup.check()
        drained.append("job")

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send(STARTED)
        working = asyncio.create_task(job())
        await receive()
        await working
        await send(ENDED)

    async def test() -> None:
        async with Application(app):
            await asyncio.sleep(0)

    asyncio.run(test())
    assert drained == ["job"]
    assert journal.fates == [("delivered",)]


def test_background_work_is_stopped_before_the_server_hears_of_the_end(
    journal: Journal,
) -> None:
    stopped: list[str] = []

    async def test() -> None:
        application = Application()
        async with application:
            working = asyncio.create_task(background(stopped))
            await ticks()
        assert stopped == ["background"]
        assert application.peer.sent == [STARTED, ENDED]
        await working

    asyncio.run(test())
    assert journal.fates == [("abandoned", "shutdown")]


def test_only_the_last_application_ends_what_lives_on(journal: Journal) -> None:
    stopped: list[str] = []

    async def test() -> None:
        async with Application():
            async with Application():
                working = asyncio.create_task(background(stopped))
                await ticks()
            await ticks()
            assert not working.done()
        await working

    asyncio.run(test())
    assert stopped == ["background"]


def test_an_application_that_crashed_counts_as_ended() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send(STARTED)
        raise ZeroDivisionError

    async def test() -> None:
        stopped: list[str] = []
        with pytest.raises(ZeroDivisionError):
            async with Application(app):
                pass
        async with Application():
            working = asyncio.create_task(background(stopped))
            await ticks()
        await working
        assert stopped == ["background"]

    asyncio.run(test())


def test_a_run_around_the_application_is_left_alone(journal: Journal) -> None:
    async def test() -> None:
        async with hangup.run(name="a test") as run:
            async with Application():
                pass
            run.check()

    asyncio.run(test())
    assert journal.fates == [("delivered",)]


def test_runs_of_other_loops_and_threads_are_left_alone(journal: Journal) -> None:
    async def test() -> None:
        async with Application():
            pass

    def elsewhere() -> Run:
        with hangup.run(name="a thread") as run:
            asyncio.run(test())
            run.check()
        return run

    assert elsewhere().state == "delivered"


def test_work_that_does_not_stop_is_waited_for_no_longer_than_it_may_take() -> None:
    async def stubborn(settled: asyncio.Event) -> None:
        async with hangup.run(name="stubborn"):
            while not settled.is_set():
                with suppress(asyncio.CancelledError):
                    await settled.wait()

    async def test() -> None:
        settled = asyncio.Event()
        async with Application():
            working = asyncio.create_task(stubborn(settled))
            await ticks()
        settled.set()
        await working

    hangup.config.use(hangup.config.Settings(settle=0.05))
    asyncio.run(asyncio.wait_for(test(), 5))


@pytest.mark.parametrize("mode", ["observe", "enforce"])
def test_what_was_spent_is_in_the_books_before_the_server_hears_of_the_end(
    mode: str,
) -> None:
    with instrumented() as telemetry:
        flushed: list[float] = []
        force_flush = telemetry.meter_provider.force_flush

        def noted(*args: Any) -> bool:
            flushed.append(telemetry.total(names.TOKENS))
            return force_flush(*args)

        telemetry.meter_provider.force_flush = noted  # type: ignore[assignment]

        async def work() -> None:
            with suppress(RunAbandoned):
                async with hangup.run(name="background", mode=mode):
                    with chat(telemetry.tracer()) as span:
                        used(span, 7, 3)
                    await over.wait()

        over = asyncio.Event()

        async def test() -> None:
            application = Application()
            async with application:
                working = asyncio.create_task(work())
                await ticks()
            assert flushed == [10]
            over.set()  # in observe mode it has gone on
            await working

        asyncio.run(test())
        assert telemetry.tokens("sunk", cause="shutdown") == (7, 3)
        assert telemetry.abandoned() == {"shutdown": 1}


# Signs that come earlier


@pytest.mark.parametrize(
    ("message", "cause"),
    [
        ("Task cancelled, timeout graceful shutdown exceeded", "shutdown"),
        (None, "failed"),
    ],
)
def test_a_request_that_outlasts_the_graceful_shutdown_is_told_so(
    journal: Journal, message: str | None, cause: str
) -> None:
    async def test() -> None:
        application = Application()
        peer, serving = application.ask()
        await ticks()
        serving.cancel(message)  # as uvicorn does
        with pytest.raises(asyncio.CancelledError):
            await serving
        if cause == "shutdown":
            assert (peer.status, peer.header("retry-after")) == (503, "1")
        else:
            assert peer.sent == []

    asyncio.run(test())
    assert journal.fates == [("abandoned", cause)]


@pytest.mark.parametrize(
    ("code", "meant", "fate"),
    [
        (1012, "abandon", ("abandoned", "shutdown")),
        (1001, "abandon", ("abandoned", "disconnect")),
        (1012, "finish", ("delivered",)),
    ],
)
def test_a_websocket_that_its_server_closes_is_not_a_user_who_left(
    journal: Journal, code: int, meant: str, fate: tuple[str, ...]
) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        spend()
        await ticks()

    async def test() -> None:
        peer = Peer({"type": "websocket.disconnect", "code": code})
        scope = {"type": "websocket", "path": "/", "headers": []}
        app_ = HangupMiddleware(app, on_disconnect=meant, mode="observe")
        await app_(scope, peer.receive, peer.send)

    asyncio.run(test())
    assert journal.fates == [fate]


def test_whoever_knows_better_says_so_to_the_whole_process(journal: Journal) -> None:
    async def test() -> None:
        application = Application()
        peer, serving = application.ask()
        gone, serving_gone = application.ask()
        await ticks()
        gone.feed(HTTP_DISCONNECT)
        await serving_gone
        assert hangup.shutdown() >= 1
        await serving
        assert (peer.status, gone.sent) == (503, [])

    asyncio.run(test())
    assert journal.fates == [("abandoned", "disconnect"), ("abandoned", "shutdown")]
