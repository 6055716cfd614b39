"""aiohttp.web: fifty walk away from each kind of response; fifty more are served."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
from aiohttp import web
from support.aiohttp_served import AiohttpServed
from support.core import in_loop
from support.pulse import Pulse
from support.rig import IN_TIME, MODEL, SHORT, Caller, Rig, rig

import hangup
from hangup.core import registry
from hangup.demo.brain import Script
from hangup.otel import names
from hangup.servers import _aiohttp_peer as peer
from hangup.servers.aiohttp import setup

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

pytestmark = pytest.mark.timeout(60)

MANY = 50
LONG = Script(tokens=400, input_tokens=20, rate=4, first_token=0.05, chunk_most=1)
"""An answer that takes 100 s."""
SPENT = 28


class Handlers:
    """An agent for each kind of response; all stream one model call."""

    def __init__(self, rig_: Rig) -> None:
        self._agent = rig_.agent

    async def json(self, _request: web.Request) -> web.StreamResponse:
        text = [piece async for piece in self._agent.pieces()]
        return web.json_response({"text": "".join(text)})

    async def stream(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        async for piece in self._agent.pieces():
            await response.write(piece.encode())
        return response

    async def sse(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        async for piece in self._agent.pieces():
            await response.write(f"data: {piece!r}\n\n".encode())
        await response.write_eof()
        return response

    async def ws(self, request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        async for _message in socket:
            async for piece in self._agent.pieces():
                await socket.send_str(piece)
            await socket.send_str("<end>")
        return socket


@contextlib.asynccontextmanager
async def serving(
    rig_: Rig, *more: web.RouteDef, options: dict[str, Any] | None = None, **terms: Any
) -> AsyncIterator[AiohttpServed]:
    """The handlers under their names, and others, below ``/{who}/``."""
    app = web.Application()
    handlers = Handlers(rig_)
    for kind in ("json", "stream", "sse", "ws"):
        app.router.add_get(f"/{{who}}/{kind}", getattr(handlers, kind))
    app.router.add_routes(more)
    setup(app, **terms)
    async with (
        rig_.agent.talking(),
        AiohttpServed(app, **(options or {})) as served,
    ):
        yield served


async def ask(
    served: AiohttpServed, kind: str, number: int = 0
) -> Callable[[], Awaitable[object]]:
    """Ask for a response of a kind; return how to leave before its end.

    From a WebSocket every other one leaves with a word: a close frame.
    """
    if kind != "ws":
        caller = await Caller.asks(served, f"/me/{kind}")

        async def leave() -> None:
            caller.leaves()

        return leave
    session = aiohttp.ClientSession()
    socket = await session.ws_connect(f"{served.url}/me/ws")
    await socket.send_str("Well?")

    async def hang_up() -> None:
        if number % 2:
            await socket.close()
        await session.close()

    return hang_up


async def is_served(served: AiohttpServed, kind: str) -> None:
    """One caller who gets all there is."""
    async with aiohttp.ClientSession() as session:
        if kind != "ws":
            async with session.get(f"{served.url}/me/{kind}") as response:
                assert response.status == 200
                assert await response.text()
            return
        async with session.ws_connect(f"{served.url}/me/ws") as socket:
            await socket.send_str("Well?")
            async for message in socket:
                if message.data == "<end>":
                    return
    raise AssertionError("the socket closed before the end")


@pytest.mark.parametrize("kind", ["json", "stream", "sse", "ws"])
def test_fifty_walk_away_and_fifty_more_are_served(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    @in_loop
    async def check() -> None:
        async with rig(LONG) as rig_, serving(rig_) as served:
            log, telemetry = rig_.model.log, rig_.telemetry
            leaving = await asyncio.gather(
                *[ask(served, kind, number) for number in range(MANY)]
            )
            await log.wait_for(
                lambda: sum(len(call.chunks) >= 2 for call in log.calls) == MANY, 30
            )
            await asyncio.gather(*[leave() for leave in leaving])
            since = time.monotonic()  # the last of them has left
            async with Pulse() as pulse:
                await log.closed_count(MANY, 30)
            await rig_.closed_in_time(since, IN_TIME + pulse.allowance)
            assert all(call.cut for call in log.calls)
            rig_.model.script(MODEL, SHORT)
            await asyncio.gather(*[is_served(served, kind) for _ in range(MANY)])
            await served.stop()  # every handler has ended
            assert log.opened == 2 * MANY
            assert telemetry.abandoned() == {"disconnect": MANY}
            assert telemetry.total(names.RUNS) == 2 * MANY
            assert telemetry.total(names.RUNS, run=f"/{{who}}/{kind}") == 2 * MANY
            assert sum(telemetry.tokens("delivered")) == MANY * SPENT
            assert telemetry.total(names.UNSETTLED) == 0

    with caplog.at_level(logging.WARNING):
        check()
    assert caplog.records == []


async def told(
    served: AiohttpServed, path: str, **headers: str
) -> tuple[int, str | None, bytes]:
    """Status, cause and body of an answer."""
    caller = await Caller.asks(served, path, headers)
    status, fields, body = await caller.answer()
    return status, fields.get("hangup-cause"), body


def test_the_caller_is_told_at_once_and_a_response_that_has_begun_is_aborted() -> None:
    @in_loop
    async def check() -> None:
        stubborn_ended = asyncio.Event()

        async def stubborn(_request: web.Request) -> web.StreamResponse:
            """Swallows the stop, and answers when nobody waits any more."""
            with contextlib.suppress(asyncio.CancelledError):
                async for _ in rig_.agent.pieces():
                    pass
            await asyncio.sleep(0.5)
            stubborn_ended.set()
            return web.json_response({"late": True})

        async def kill(request: web.Request) -> web.StreamResponse:
            for run in registry.live_runs():
                run.cancel(request.query["cause"])
            return web.Response()

        # Long enough for a first piece to have come, also on a machine that is busy.
        routes = {"/late/*": {"budget": 1.2}}
        more = [web.get("/late/stubborn/x", stubborn), web.get("/kill", kill)]
        async with rig(LONG) as rig_, serving(rig_, *more, routes=routes) as served:
            status, cause, body = await told(served, "/late/json")
            assert (status, cause) == (504, "deadline")
            assert b"deadline" in body
            async with (
                aiohttp.ClientSession() as session,
                session.get(f"{served.url}/late/stubborn/x") as response,
            ):
                assert response.status == 504
                assert b"deadline" in await response.read()
                assert not stubborn_ended.is_set()
            for kind in ("stream", "sse"):
                status, _, body = await told(served, f"/late/{kind}")
                assert status == 200
                assert body
                assert not body.endswith(b"0\r\n\r\n")
            async with (
                aiohttp.ClientSession() as session,
                session.ws_connect(f"{served.url}/late/ws") as socket,
            ):
                await socket.send_str("Well?")
                message = await socket.receive()
                while message.type is aiohttp.WSMsgType.TEXT:
                    message = await socket.receive()
                assert (message.data, message.extra) == (4504, "deadline")
            asking = asyncio.create_task(told(served, "/me/json"))
            await rig_.model.log.opened_count(6)
            await told(served, "/kill?cause=killed")
            assert (await asking)[:2] == (409, "killed")
            await rig_.model.log.closed_count(6)
            assert all(call.cut for call in rig_.model.log.calls)
            await stubborn_ended.wait()

    check()


def test_at_shutdown_sockets_close_and_requests_have_their_time() -> None:
    """Those that outlast it are told to try again; what is left over is abandoned."""

    @in_loop
    async def check() -> None:
        jobs: list[asyncio.Task[None]] = []

        async def spend() -> None:
            async for _ in rig_.agent.pieces():
                pass

        async def job() -> None:
            with contextlib.suppress(hangup.RunAbandoned):
                async with hangup.run(name="job"):
                    await spend()

        async def leaves_a_job(_request: web.Request) -> web.StreamResponse:
            with hangup.detached():
                jobs.append(asyncio.create_task(job()))
            return web.Response()

        more = [web.get("/job", leaves_a_job)]
        async with rig(LONG) as rig_, serving(rig_, *more) as served:
            log = rig_.model.log
            assert (await told(served, "/job"))[0] == 200
            await log.opened_count(1)
            rig_.model.script(MODEL, LONG, LONG, Script(tokens=10, rate=20))
            outlasting = asyncio.create_task(told(served, "/me/json"))
            await log.opened_count(2)
            async with (
                aiohttp.ClientSession() as session,
                session.ws_connect(f"{served.url}/me/ws") as socket,
            ):
                await socket.send_str("Well?")
                await log.wait_for(
                    lambda: log.opened == 3 and bool(log.calls[2].chunks)
                )
                in_time = asyncio.create_task(told(served, "/me/json"))
                await log.opened_count(4)
                ending = asyncio.create_task(served.stop())
                message = await socket.receive()
                while message.type is aiohttp.WSMsgType.TEXT:
                    message = await socket.receive()
                assert (message.data, message.extra) == (1012, "shutdown")
            assert (await in_time)[0] == 200
            assert (await outlasting)[:2] == (503, "shutdown")
            await ending
            await asyncio.gather(*jobs)
            await log.closed_count(4)
            assert rig_.telemetry.abandoned() == {"shutdown": 3}
            assert rig_.telemetry.total(names.RUNS, outcome="delivered") == 1

    check()


def test_without_word_from_aiohttp_the_connection_is_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(peer, "_HOOK", "_of_another_version")

    @in_loop
    async def check() -> None:
        async with rig(LONG) as rig_, serving(rig_) as served:
            leave = await ask(served, "json")
            await rig_.model.log.tokens_count(2)
            since = time.monotonic()
            await leave()
            await rig_.model.log.closed_count(1)
            await rig_.closed_in_time(since, IN_TIME + peer.POLL_SECONDS)
            await served.stop()
            assert rig_.telemetry.abandoned() == {"disconnect": 1}

    check()


@pytest.mark.parametrize("cancels", [False, True])
def test_cancels_of_aiohttps_own_are_the_same_disconnect(cancels: bool) -> None:  # noqa: FBT001
    @in_loop
    async def check() -> None:
        options = {"handler_cancellation": cancels}
        async with rig(LONG) as rig_, serving(rig_, options=options) as served:
            leave = await ask(served, "json")
            await rig_.model.log.tokens_count(2)
            await leave()
            await rig_.model.log.closed_count(1)
            await served.stop()
            assert rig_.telemetry.abandoned() == {"disconnect": 1}

    check()


@pytest.mark.parametrize("kind", ["json", "stream", "sse"])
def test_one_who_left_is_served_to_the_end_where_the_route_says_so(kind: str) -> None:
    script = Script(tokens=20, input_tokens=20, rate=20, first_token=0.05)

    @in_loop
    async def check() -> None:
        async with (
            rig(script) as rig_,
            serving(rig_, on_disconnect="finish") as served,
        ):
            leave = await ask(served, kind)
            await rig_.model.log.opened_count(1)
            await leave()
            await rig_.model.log.closed_count(1)
            await served.stop()
            assert not rig_.model.log.calls[0].cut
            assert rig_.telemetry.abandoned() == {}
            assert rig_.telemetry.total(names.RUNS, outcome="delivered") == 1
            assert rig_.telemetry.total(names.RUNS, caller="gone") == 1

    check()


def test_a_conversation_that_is_over_was_delivered() -> None:
    """A close while the handler waits for the next message, with or without a word."""

    @in_loop
    async def check() -> None:
        async with rig(SHORT) as rig_, serving(rig_) as served:
            for number in range(2):
                session = aiohttp.ClientSession()
                socket = await session.ws_connect(f"{served.url}/me/ws")
                await socket.send_str("Well?")
                while (await socket.receive()).data != "<end>":
                    pass
                if number:
                    await socket.close()
                await session.close()
            await served.stop()
            assert rig_.telemetry.abandoned() == {}
            assert rig_.telemetry.total(names.RUNS, outcome="delivered") == 2

    check()


def test_in_observe_mode_nothing_is_cut() -> None:
    script = Script(tokens=20, input_tokens=20, rate=20, first_token=0.05)

    @in_loop
    async def check() -> None:
        async with rig(script) as rig_, serving(rig_, mode="observe") as served:
            leave = await ask(served, "json")
            await rig_.model.log.opened_count(1)
            await leave()
            await rig_.model.log.closed_count(1)
            await served.stop()
            assert not rig_.model.log.calls[0].cut
            assert rig_.telemetry.abandoned() == {"disconnect": 1}
            assert sum(rig_.telemetry.tokens("wasted")) > 0

    check()
