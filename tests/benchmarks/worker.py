"""One side of the benchmark: a process with the SDK, with or without hangup.

``worker.py VARIANT SAMPLING`` says what it can measure on its first line of output,
then answers every line ``CASE ROUND`` with the seconds that one operation took.
Started by ``run.py``, which explains the method.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import platform
import random
import sys
from importlib.metadata import version
from time import process_time
from typing import TYPE_CHECKING, Any

from opentelemetry import context, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import (
    BatchSpanProcessor,
    SpanExporter,
    SpanExportResult,
)
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import SpanKind
from streaming import Stream

import hangup

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from contextlib import AbstractAsyncContextManager

    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.trace import Span

# What opentelemetry-instrumentation-genai-openai 1.3b0 sets: at the start, what a
# sampler may want to see; at the end, the rest in one call.
CALL_START: dict[str, str | int] = {
    "gen_ai.operation.name": "chat",
    "gen_ai.provider.name": "openai",
    "gen_ai.request.model": "gpt-4o",
    "server.address": "api.openai.com",
    "server.port": 443,
}
CALL_END: dict[str, str | int | list[str]] = {
    "gen_ai.response.finish_reasons": ["stop"],
    "gen_ai.response.model": "gpt-4o-2024-08-06",
    "gen_ai.response.id": "chatcmpl-AbCdEfGhIjKlMnOpQrStUv",
    "gen_ai.usage.input_tokens": 1200,
    "gen_ai.usage.output_tokens": 340,
}
HTTP_START: dict[str, str | int] = {
    "http.request.method": "POST",
    "server.address": "api.openai.com",
    "server.port": 443,
    "url.full": "https://api.openai.com/v1/chat/completions",
}
REQUEST_START: dict[str, str | int] = {
    "http.request.method": "POST",
    "http.route": "/chat",
    "server.address": "agents.example.com",
    "url.path": "/chat",
    "url.scheme": "https",
}
SPANS_PER_REQUEST = 40
REQUESTS = 50
SEED = 20_240_806


class Discard(SpanExporter):
    """Exports to nowhere, so that no exporter's cost dilutes the ratio."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        return SpanExportResult.SUCCESS


class Side:
    """The SDK as an application sets it up, with hangup on top or without."""

    def __init__(self, variant: str, sampling: float) -> None:
        self.hangup = variant == "hangup"
        self.stream = Stream()
        self.provider = TracerProvider(sampler=ParentBased(TraceIdRatioBased(sampling)))
        self.provider.add_span_processor(
            BatchSpanProcessor(Discard(), max_queue_size=65_536)
        )
        meters = MeterProvider(metric_readers=[InMemoryMetricReader()])
        trace.set_tracer_provider(self.provider)
        self.tracer = trace.get_tracer("opentelemetry.instrumentation.genai.openai")
        if self.hangup:
            hangup.instrument(tracer_provider=self.provider, meter_provider=meters)

    def run(self) -> AbstractAsyncContextManager[object]:
        if self.hangup:
            return hangup.run(budget=600.0, name="research")
        return contextlib.nullcontext()

    @contextlib.contextmanager
    def request(self) -> Any:
        """Serve a request: every model call of a real agent has a span around it."""
        span = self.tracer.start_span(
            "POST /chat", kind=SpanKind.SERVER, attributes=dict(REQUEST_START)
        )
        token = context.attach(trace.set_span_in_context(span))
        yield
        context.detach(token)
        span.end()


def call_span(side: Side, inner: Callable[[Side], None] | None = None) -> None:
    """Make the span of one model call, as its instrumentation does."""
    span = side.tracer.start_span(
        name="chat gpt-4o", kind=SpanKind.CLIENT, attributes=dict(CALL_START)
    )
    token = context.attach(trace.set_span_in_context(span))
    if inner is not None:
        inner(side)
    span.set_attributes(dict(CALL_END))
    context.detach(token)
    span.end()


def http_span(side: Side) -> None:
    """Make a span that is no spending call: that of an HTTP request."""
    span: Span = side.tracer.start_span(
        "POST", kind=SpanKind.CLIENT, attributes=dict(HTTP_START)
    )
    token = context.attach(trace.set_span_in_context(span))
    span.set_attribute("http.response.status_code", 200)
    context.detach(token)
    span.end()


async def _spans(
    side: Side, span: Callable[[Side], None], *, inside: bool = True
) -> float:
    """Time spans in requests; opening and leaving request and run is not timed."""
    seconds = 0.0
    for _ in range(REQUESTS):
        with side.request():
            async with side.run() if inside else contextlib.nullcontext():
                begun = process_time()
                for _ in range(SPANS_PER_REQUEST):
                    span(side)
                seconds += process_time() - begun
    return seconds / (REQUESTS * SPANS_PER_REQUEST)


async def span_outside(side: Side) -> float:
    """A request's span and an HTTP span in it, outside a run: the mean of the two."""
    count = REQUESTS * SPANS_PER_REQUEST // 2
    begun = process_time()
    for _ in range(count):
        with side.request():
            http_span(side)
    return (process_time() - begun) / (2 * count)


async def call_outside(side: Side) -> float:
    """A model call's span outside a run: metered, never refused."""
    return await _spans(side, call_span, inside=False)


async def call_in_run(side: Side) -> float:
    """A model call's span inside a run."""
    return await _spans(side, call_span)


async def span_in_run(side: Side) -> float:
    """A span inside a run that is no call."""
    return await _spans(side, http_span)


async def call_with_http(side: Side) -> float:
    """A model call's span and the HTTP span inside it, inside a run."""
    return await _spans(side, lambda here: call_span(here, http_span))


async def empty_run(side: Side) -> float:
    """A request's span with an empty run inside it: opening and leaving a run."""
    count = REQUESTS * 4
    begun = process_time()
    for _ in range(count):
        with side.request():
            async with side.run():
                pass
    return (process_time() - begun) / count


async def agent_request(side: Side) -> float:
    """A request with a run of ten model calls over HTTP, its accounts included."""
    count = REQUESTS
    begun = process_time()
    for _ in range(count):
        with side.request():
            async with side.run():
                for _ in range(10):
                    call_span(side, http_span)
    return (process_time() - begun) / count


def _asgi_app(*, hangup_: bool) -> Callable[[Any, Any, Any], Awaitable[None]]:
    from starlette.applications import Starlette  # noqa: PLC0415  only this case
    from starlette.responses import JSONResponse  # noqa: PLC0415
    from starlette.routing import Route  # noqa: PLC0415

    from hangup.servers.asgi import HangupMiddleware  # noqa: PLC0415

    async def save(_request: object) -> JSONResponse:
        return JSONResponse({"saved": True})

    app = Starlette(routes=[Route("/save", save, methods=["POST"])])
    return HangupMiddleware(app, budget=30.0) if hangup_ else app


async def asgi_latent(side: Side) -> float:
    """A Starlette request that makes no spending call, with the middleware or not."""
    app = _asgi_app(hangup_=side.hangup)
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": "/save",
        "raw_path": b"/save",
        "query_string": b"",
        "root_path": "",
        "headers": [
            (b"host", b"agents.example.com"),
            (b"user-agent", b"benchmark/1.0"),
            (b"accept", b"*/*"),
            (b"accept-encoding", b"gzip, deflate, br"),
            (b"content-type", b"application/json"),
            (b"content-length", b"2"),
        ],
        "client": ("127.0.0.1", 50_000),
        "server": ("127.0.0.1", 80),
    }

    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": b"{}", "more_body": False}

    async def send(_message: object) -> None:
        return None

    count = REQUESTS * 4
    await app(dict(scope), receive, send)  # Starlette builds its stack now
    begun = process_time()
    for _ in range(count):
        await app(dict(scope), receive, send)
    return (process_time() - begun) / count


async def stream_event(side: Side) -> float:
    """An event of a 10,000-event stream read through openai's client, in a run."""
    return await side.stream.read(side.run)


CASES: tuple[Callable[[Side], Awaitable[float]], ...] = (
    span_outside,
    call_outside,
    call_in_run,
    span_in_run,
    call_with_http,
    empty_run,
    agent_request,
    asgi_latent,
    stream_event,
)


async def _serve(side: Side) -> None:
    cases = {case.__name__: case for case in CASES}
    for line in sys.stdin:
        name, number = line.split()
        # Both sides draw the same trace ids, so the same traces are sampled.
        random.seed(SEED + int(number))
        gc.collect()
        gc.disable()
        try:
            seconds = await cases[name](side)
        finally:
            gc.enable()
        side.provider.force_flush()
        print(json.dumps(seconds), flush=True)


def main() -> None:
    """Measure on request until standard input ends."""
    variant, sampling = sys.argv[1:]
    side = Side(variant, float(sampling))
    about = {
        "hangup": hangup.__version__,
        "python": platform.python_version(),
        "sdk": version("opentelemetry-sdk"),
        "cases": {case.__name__: case.__doc__ for case in CASES},
    }
    print(json.dumps(about), flush=True)
    try:
        asyncio.run(_serve(side))
    finally:
        side.stream.stop()


if __name__ == "__main__":
    main()
