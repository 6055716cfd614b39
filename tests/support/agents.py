"""Applications and spending calls for tests on real servers."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

import httpx
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import SpanKind, Tracer
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

import hangup
from hangup.servers.asgi import HangupMiddleware

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from contextlib import AbstractContextManager

    from starlette.requests import Request
    from support.servers import SilentModel


class Spans:
    """Where the applications under test find the tracer."""

    tracer: ClassVar[Tracer | None] = None


@contextmanager
def installed() -> Iterator[None]:
    """Hangup on an SDK, as its users have it."""
    provider = TracerProvider()
    # Stopping people who wait is what the tests do: no brake.
    hangup.instrument(
        tracer_provider=provider, meter_provider=MeterProvider(), brake_share=100
    )
    Spans.tracer = provider.get_tracer("test")
    try:
        yield
    finally:
        Spans.tracer = None
        hangup.uninstrument()


def spending() -> AbstractContextManager[Any]:
    """A spending call, as a model instrumentation reports one."""
    assert Spans.tracer is not None
    return Spans.tracer.start_as_current_span(
        "chat silent",
        kind=SpanKind.CLIENT,
        attributes={"gen_ai.operation.name": "chat", "gen_ai.request.model": "silent"},
    )


async def ask(model: SilentModel) -> None:
    """Call the model, which does not answer."""
    with spending():
        async with httpx.AsyncClient(timeout=60) as client:
            await client.get(model.url)


def plain_bhm() -> Middleware:
    """A function-style middleware that does nothing, as ``@app.middleware`` does."""

    async def dispatch(request: Request, call_next: Any) -> Response:
        response: Response = await call_next(request)
        return response

    return Middleware(BaseHTTPMiddleware, dispatch=dispatch)


def agent_app(model: SilentModel, *middleware: Middleware) -> Starlette:
    """The same agent behind a JSON and a streaming route."""

    async def as_json(request: Request) -> Response:
        await ask(model)
        return JSONResponse({})

    async def as_stream(request: Request) -> Response:
        async def tokens() -> AsyncIterator[str]:
            yield "one "
            await ask(model)
            yield "two "

        return StreamingResponse(tokens())

    routes = [Route("/json", as_json), Route("/stream", as_stream)]
    return Starlette(routes=routes, middleware=middleware)


ORDERS: dict[str, Callable[[], list[Middleware]]] = {
    "bare": lambda: [Middleware(HangupMiddleware)],
    "bhm inside": lambda: [Middleware(HangupMiddleware), plain_bhm()],
    "bhm around": lambda: [plain_bhm(), Middleware(HangupMiddleware)],
    "bhm both": lambda: [plain_bhm(), Middleware(HangupMiddleware), plain_bhm()],
}
"""Where hangup stands among function-style middleware, outermost first."""
