"""One agent behind every kind of connection, to be imported by a server's process.

The model is at ``MODEL`` (its OpenAI base URL); a request names the model it wants, and
so what the answer is like. What was booked goes to files, see :mod:`support.books`.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from openai import AsyncOpenAI
from opentelemetry.instrumentation.genai.openai import OpenAIInstrumentor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.trace import TracerProvider
from sse_starlette import EventSourceResponse
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.middleware import Middleware
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route, WebSocketRoute
from support.agents import plain_bhm
from support.books import writing

import hangup
from hangup.servers.asgi import HangupMiddleware

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.requests import Request
    from starlette.websockets import WebSocket

_tracers = TracerProvider(shutdown_on_exit=False)
_meters = writing()
hangup.instrument(tracer_provider=_tracers, meter_provider=_meters, mode="enforce")
OpenAIInstrumentor().instrument(
    tracer_provider=_tracers, meter_provider=MeterProvider(shutdown_on_exit=False)
)
_client = AsyncOpenAI(base_url=os.environ["MODEL"], api_key="test", max_retries=0)


@contextlib.asynccontextmanager
async def lifespan(_app: Starlette) -> AsyncIterator[None]:
    # The first call imports for a good part of a second; the tests have less.
    await _client.models.list()
    assert _client.chat.completions
    yield


async def ask(model: str) -> str:
    """Make one model call that is not a stream."""
    completion = await _client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": "Well?"}]
    )
    return completion.choices[0].message.content or ""


async def pieces(model: str) -> AsyncIterator[str]:
    """Stream one model call."""
    stream = await _client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": "Well?"}], stream=True
    )
    async with stream:
        async for chunk in stream:
            if chunk.choices:
                yield chunk.choices[0].delta.content or ""


def _wanted(connection: Request | WebSocket) -> str:
    return connection.query_params.get("model", "long")


async def as_json(request: Request) -> Response:
    return JSONResponse({"answer": await ask(_wanted(request))})


async def as_stream(request: Request) -> Response:
    return StreamingResponse(pieces(_wanted(request)))


async def as_sse(request: Request) -> Response:
    return EventSourceResponse({"data": one} async for one in pieces(_wanted(request)))


async def as_websocket(socket: WebSocket) -> None:
    """Answer once without having received anything, then echo what comes."""
    await socket.accept()
    await socket.send_text(await ask(_wanted(socket)))
    async for text in socket.iter_text():
        await socket.send_text(text)


async def with_background(request: Request) -> Response:
    """Ask for something short, answer, and ask the model again afterwards."""
    await ask("quick")
    return JSONResponse({}, background=BackgroundTask(ask, _wanted(request)))


def agent(*middleware: Middleware) -> Starlette:
    """The agent itself, in these, outermost first."""
    return Starlette(
        routes=[
            Route("/json", as_json),
            Route("/stream", as_stream),
            Route("/sse", as_sse),
            WebSocketRoute("/ws", as_websocket),
            Route("/background", with_background),
        ],
        middleware=middleware,
        lifespan=lifespan,
    )


app = HangupMiddleware(agent())
ending = HangupMiddleware(agent(), shutdown_after=0.5)
around = agent(plain_bhm(), Middleware(HangupMiddleware))
inside = agent(Middleware(HangupMiddleware), plain_bhm())
stacks = Starlette(
    routes=[
        Mount("/plain", app),
        Mount("/around", around),
        Mount("/inside", inside),
        Mount("/without", agent()),
        Mount("/limited", HangupMiddleware(agent(), budget=1.5)),
        Mount("/tied", HangupMiddleware(agent(), background_in_run=True)),
    ],
    lifespan=lifespan,
)
"""The same agent in several ways, by the first segment of the path."""
