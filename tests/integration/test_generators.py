"""Streams that are left half-way: case c1, and every way to drop a generator.

Under real uvicorn, with the real OpenAI client and its instrumentation; the model's log
says when each connection to it was closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging
import re
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry import context as otel_context
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route
from support.core import in_loop
from support.rig import IN_TIME, MODEL, Caller, rig
from support.waiting import eventually

import hangup
from hangup.core import registry
from hangup.core.current import position
from hangup.demo.brain import Script
from hangup.servers.asgi import HangupMiddleware

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable

    from starlette.requests import Request
    from starlette.responses import Response
    from support.rig import Agent, Rig

pytestmark = pytest.mark.timeout(90)

# Slow enough that nobody hears the end, and that a hundred are no load.
TALK = Script(tokens=400, input_tokens=20, rate=4, first_token=0.05)
# As its loop shuts down, asyncio closes all generators at once; those of the clients
# close others, and find that these are being closed. Ours are functions, or Agent's.
CLIENTS = re.compile(r"closing of asynchronous generator <\S+ object (?!Agent)[A-Z]")


# How a handler may hold a model's stream


async def _stream_of(agent: Agent) -> Any:
    return await agent.client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "Well?"}],
        stream=True,
        stream_options={"include_usage": True},
    )


async def closing(agent: Agent) -> AsyncGenerator[str, None]:
    """Closes what it holds."""
    async for piece in agent.pieces():
        yield f"data: {piece}\n\n"


async def half_closed(agent: Agent) -> AsyncGenerator[str, None]:
    """Leaves the model's stream to whoever collects it."""
    async for chunk in await _stream_of(agent):
        yield f"data: {chunk.id}\n\n"


async def in_a_run(agent: Agent) -> AsyncGenerator[str, None]:
    """Holds a run of its own across its yields, and a block to drain."""
    async with hangup.run(name="inner"), hangup.drain(0):
        async for piece in agent.pieces():
            yield f"data: {piece}\n\n"


async def pumped(agent: Agent) -> AsyncGenerator[str, None]:
    """Has another task iterate, and close, what it yields."""
    queue: asyncio.Queue[str] = asyncio.Queue(1)
    inner = in_a_run(agent)

    async def pump() -> None:
        async with contextlib.aclosing(inner):
            async for piece in inner:
                await queue.put(piece)

    async def end() -> None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    task = asyncio.create_task(pump())
    try:
        while True:
            yield await queue.get()
    finally:
        await asyncio.create_task(end())  # a third one, as a supervisor would be


WAYS: list[Callable[[Agent], AsyncIterator[str]]] = [
    closing,
    half_closed,
    in_a_run,
    pumped,
]


class Clean:
    """Outermost: looks at the context that each request of the worker begins in."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self.began: list[tuple[object, object]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            self.began.append((position(), dict(otel_context.get_current())))
        await self._app(scope, receive, send)


def routes(rigged: Rig) -> list[Route]:
    def streaming(way: Callable[[Agent], AsyncIterator[str]]) -> Any:
        async def answer(request: Request) -> Response:
            return StreamingResponse(way(rigged.agent), media_type="text/event-stream")

        return answer

    async def fresh(request: Request) -> Response:
        run = hangup.current_run()
        assert run is not None
        return JSONResponse(
            {"id": run.id, "child": run.parent is not None, "left": run.remaining()}
        )

    ways = [Route(f"/{way.__name__}", streaming(way)) for way in WAYS]
    return [*ways, Route("/fresh", fresh)]


async def first_piece(caller: Caller) -> None:
    assert b"200 OK" in await caller._reader.readuntil(b"\r\n\r\n")
    await caller._reader.readuntil(b"data: ")


def test_c1_detach_noise(caplog: pytest.LogCaptureFixture) -> None:
    """100 abandoned SSE streams are not heard of again, nor by the next request."""
    caplog.set_level(logging.INFO)

    @in_loop
    async def check() -> None:
        clean: list[Clean] = []

        def wrap(app: Any) -> Clean:
            clean.append(Clean(HangupMiddleware(app, budget=300)))
            return clean[0]

        async with (
            rig(TALK) as rigged,
            rigged.serving(*routes(rigged), wrap=wrap) as served,
        ):

            async def walk_away(way: str) -> float:
                caller = await Caller.asks(served, f"/{way}")
                await first_piece(caller)
                return caller.leaves()

            async def come_fresh(_: int) -> tuple[int, Any]:
                caller = await Caller.asks(served, "/fresh")
                status, _headers, body = await caller.answer()
                return status, json.loads(body)

            names = [way.__name__ for way in WAYS] * 25
            left = await asyncio.gather(*map(walk_away, names))
            await rigged.idle(served)
            await rigged.model.log.closed_count(100, within=5)
            await rigged.closed_in_time(max(left))
            stale = {str(run.id) for run in registry.live_runs()}
            assert stale == set()

            answers = await asyncio.gather(*map(come_fresh, range(100)))
            assert [status for status, _ in answers] == [200] * 100
            assert len({body["id"] for _, body in answers}) == 100
            assert not any(body["child"] for _, body in answers)
            assert all(290 < body["left"] <= 300 for _, body in answers)
            assert clean[0].began == [(None, {})] * 200
            assert rigged.telemetry.abandoned() == {"disconnect": 100}

    check()
    _is_quiet(caplog)


def _is_quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Nothing complained, of a context or of a generator."""
    gc.collect()
    loud = [one.getMessage() for one in caplog.records if one.levelno > logging.INFO]
    assert [one for one in loud if not CLIENTS.search(one)] == []


@pytest.mark.parametrize("way", WAYS)
def test_a_stream_that_its_own_code_drops_is_closed_and_not_heard_of(
    way: Callable[[Agent], AsyncIterator[str]], caplog: pytest.LogCaptureFixture
) -> None:
    """Broken off in a request that is answered: by itself, by a later one, or by none.

    Those that nobody drops are closed as the loop of the server shuts down.
    """
    caplog.set_level(logging.INFO)
    each = 5

    @in_loop
    async def check() -> None:
        kept: list[AsyncIterator[str]] = []
        seen: list[str | None] = []

        async with rig(TALK) as rigged:

            async def broken(request: Request) -> Response:
                async for _ in way(rigged.agent):
                    break
                return JSONResponse({})

            async def keeping(request: Request) -> Response:
                stream = way(rigged.agent)
                async for _ in stream:
                    break
                kept.append(stream)
                return JSONResponse({})

            async def dropping(request: Request) -> Response:
                del kept[:each]
                gc.collect()
                await asyncio.sleep(0.1)
                run = hangup.current_run()
                hangup.check()
                seen.append(None if run is None or run.cause else run.id)
                text = await rigged.agent.ask(max_tokens=1)
                return JSONResponse({"text": text.id})

            async def ask(path: str) -> int:
                return (await (await Caller.asks(served, path)).answer())[0]

            def open_calls() -> int:
                return sum(call.closed is None for call in rigged.model.log.calls)

            handlers = {"broken": broken, "keeping": keeping, "dropping": dropping}
            rest = [Route(f"/{path}", end) for path, end in handlers.items()]
            async with rigged.serving(*rest) as served:
                answers = await asyncio.gather(*[ask("/broken") for _ in range(each)])
                await eventually(lambda: open_calls() == 0, 10 * IN_TIME)
                kept_by = await asyncio.gather(
                    *[ask("/keeping") for _ in range(2 * each)]
                )
                rigged.model.script(MODEL, Script(tokens=1, first_token=0.01))
                answers += [*kept_by, await ask("/dropping")]
                await eventually(lambda: open_calls() == each, 10 * IN_TIME)
                assert len(kept) == each
            assert answers == [200] * (3 * each + 1)
            assert None not in seen
            await eventually(lambda: open_calls() == 0, 10 * IN_TIME)
            assert len(rigged.model.log.calls) == 3 * each + 1
            assert rigged.telemetry.abandoned() == {}

    check()
    _is_quiet(caplog)
