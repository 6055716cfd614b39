"""Programs with one thing wrong each, to be looked at by ``hangup doctor``.

``doctored.py PLANT[,VARIABLE=VALUE]...`` sets OpenTelemetry up as an application does,
with what is planted, and then waits to be ended. Those that call a model find it at
``MODEL_URL``. With several plants each is a child of its own, for which everything has
been imported once.
"""

# ruff: noqa: PLC0415  each imports what it needs: most need little

from __future__ import annotations

import asyncio
import importlib
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from opentelemetry import metrics, propagate, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import (
    ConsoleMetricExporter,
    PeriodicExportingMetricReader,
)
from opentelemetry.sdk.trace import (
    ConcurrentMultiSpanProcessor,
    SpanProcessor,
    SynchronousMultiSpanProcessor,
    TracerProvider,
)
from opentelemetry.sdk.trace.export import (
    BatchSpanProcessor,
    ConsoleSpanExporter,
    SimpleSpanProcessor,
)
from opentelemetry.sdk.trace.sampling import TraceIdRatioBased
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

import hangup

MODEL = "gpt-4o-mini"
# What hangup.instrument() imports, beside what libraries do when they are used.
PRELOADED = (
    *("httpx", "httpx2", "aiohttp", "genai_prices.data_snapshot", "packaging"),
    *("httpcore._sync", "httpcore._async", "httpcore2._sync", "httpcore2._async"),
    *("h2.connection", "anyio", "multiprocessing.pool", "concurrent.futures.process"),
    *("hangup.otel.instrumentor", "hangup.otel.diagnosis_facts"),
    *("hangup.otel.diagnosis_sightings", "hangup.clients.langchain"),
    *("hangup.clients.threads", "hangup.clients.psycopg", "hangup.clients.retries"),
)
NOWHERE = Path(os.devnull).open("w")  # noqa: SIM115  as long as the process


def spans() -> ConsoleSpanExporter:
    return ConsoleSpanExporter(out=NOWHERE)


def traced(*before: SpanProcessor, **options: Any) -> TracerProvider:
    """Set a provider with an exporter, and with these processors first."""
    provider = TracerProvider(**options)
    for processor in (*before, BatchSpanProcessor(spans())):
        provider.add_span_processor(processor)
    trace.set_tracer_provider(provider)
    return provider


def measured() -> None:
    exporter = ConsoleMetricExporter(out=NOWHERE)
    metrics.set_meter_provider(MeterProvider([PeriodicExportingMetricReader(exporter)]))


def stock(*before: SpanProcessor, **options: Any) -> TracerProvider:
    """Set everything up as it should be."""
    provider = traced(*before, **options)
    measured()
    hangup.instrument()
    return provider


def wait() -> None:
    """Wait to be ended, as a server does: nothing runs at exit."""
    signal.pause()


def nothing() -> None:
    stock()


def not_installed() -> None:
    traced()
    measured()


def no_sdk() -> None:
    measured()
    hangup.instrument()


def provider_unwatched() -> None:
    """Set once more, and past the API, which allows it only once."""
    stock()
    exporter = PeriodicExportingMetricReader(ConsoleMetricExporter(out=NOWHERE))
    internal: Any = metrics._internal
    internal._METER_PROVIDER = MeterProvider([exporter])


def sampler() -> None:
    stock().sampler = TraceIdRatioBased(0.1)


def processor_missing() -> None:
    provider = stock()
    provider._active_span_processor = SynchronousMultiSpanProcessor()  # type: ignore[no-untyped-call]
    provider.add_span_processor(BatchSpanProcessor(spans()))


def processor_order() -> None:
    stock(SimpleSpanProcessor(spans()))


class Raises(SpanProcessor):
    def on_end(self, span: Any) -> None:
        raise ValueError(span.name)


def processor_raises() -> None:
    stock(Raises())
    with hangup.run(name="raises"):
        try:
            chat()
        except ValueError:
            return


def chat(**attributes: Any) -> None:
    with trace.get_tracer("app").start_as_current_span(
        "chat",
        attributes={
            "gen_ai.operation.name": "chat",
            "gen_ai.request.model": MODEL,
            **attributes,
        },
    ) as span:
        span.set_attribute("gen_ai.usage.input_tokens", 20)
        span.set_attribute("gen_ai.usage.output_tokens", 20)


def processor_concurrent() -> None:
    stock(active_span_processor=ConcurrentMultiSpanProcessor())


class SendsAll(SpanProcessor):
    """As many a processor of one's own: nobody told it of the sampled flag."""

    def __init__(self) -> None:
        self.exporter = spans()

    def on_end(self, span: Any) -> None:
        self.exporter.export([span])


def exports_unsampled() -> None:
    stock(SendsAll(), sampler=TraceIdRatioBased(0.1))


def no_exporter() -> None:
    traced()
    metrics.set_meter_provider(MeterProvider())
    hangup.instrument()


def no_trace_exporter() -> None:
    trace.set_tracer_provider(TracerProvider())
    measured()
    hangup.instrument()


def propagator() -> None:
    stock()
    propagate.set_global_textmap(TraceContextTextMapPropagator())


def requests_unwatched() -> None:
    import uvicorn

    stock()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()

    uvicorn.run(app, port=0, lifespan="off", log_level="warning")


def outside_runs() -> None:
    stock()
    chat()


def wire_unwatched() -> None:
    import httpx

    stock()

    def replaced(self: Any, request: Any) -> Any:
        raise NotImplementedError

    httpx.HTTPTransport.handle_request = replaced  # type: ignore[method-assign]


def httpx2_spans() -> None:
    import openai  # noqa: F401
    from opentelemetry.instrumentation.httpx import HTTPXClientInstrumentor

    stock()
    HTTPXClientInstrumentor().instrument()


def usage_unknown() -> None:
    import openai
    from opentelemetry.instrumentation.genai.openai import OpenAIInstrumentor

    stock()
    OpenAIInstrumentor().instrument()
    client = openai.OpenAI(api_key="x", base_url=os.environ["MODEL_URL"] + "/v1")
    with hangup.run(name="streams", mode="observe"):
        for _ in client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "Well?"}], stream=True
        ):
            pass


def unpriced() -> None:
    stock()
    with hangup.run(name="unpriced"):
        chat(**{"gen_ai.request.model": "of-our-own-make"})


def host_denied() -> None:
    import httpx

    resolve = socket.getaddrinfo

    def at_home(host: Any, *args: Any, **kwargs: Any) -> Any:
        here = "127.0.0.1" if host == "tools.example.com" else host
        return resolve(here, *args, **kwargs)

    socket.getaddrinfo = at_home
    stock()
    port = os.environ["MODEL_URL"].rpartition(":")[2]
    with hangup.run(name="calls"), httpx.Client() as client:
        client.get(f"http://tools.example.com:{port}/v1/models").raise_for_status()


def prefork_pushes() -> None:
    """Two workers that were not forked, and one instance id for both."""
    os.environ["OTEL_RESOURCE_ATTRIBUTES"] = "service.instance.id=the-pod"
    command = [sys.executable, __file__, "nothing"]
    workers = [subprocess.Popen(command) for _ in range(2)]  # noqa: S603
    wait()
    for worker in workers:
        worker.terminate()


def prefork_scraped() -> None:
    """Two workers behind the one port that their parent listens on."""
    from opentelemetry.exporter.prometheus import PrometheusMetricReader
    from prometheus_client import start_http_server

    traced()
    start_http_server(0, addr="127.0.0.1")
    metrics.set_meter_provider(MeterProvider([PrometheusMetricReader()]))
    hangup.instrument()
    for _ in range(2):
        if os.fork() == 0:
            break
    wait()


def irreversible() -> None:
    stock()
    with hangup.run(name="tools"):
        for tool in ("search_notes", "send_email", "charge_card"):
            with trace.get_tracer("app").start_as_current_span(
                f"execute_tool {tool}",
                attributes={
                    "gen_ai.operation.name": "execute_tool",
                    "gen_ai.tool.name": tool,
                },
            ):
                pass


def destructive() -> None:
    from mcp.client.client import Client
    from mcp.server.mcpserver import MCPServer
    from mcp_types import ToolAnnotations

    stock()
    server = MCPServer("tools")

    @server.tool(annotations=ToolAnnotations(destructive_hint=True))
    def wipe(path: str) -> str:
        return path

    @server.tool()
    def look(path: str) -> str:
        return path

    async def ask() -> None:
        async with Client(server) as client:
            await client.list_tools()

    asyncio.run(ask())


def brake() -> None:
    from hangup.core import rollout

    stock()
    rollout.brake()


def baggage() -> None:
    from opentelemetry import baggage, context

    stock()
    with hangup.run(name="heavy"):
        here = context.get_current()
        for number in range(200):
            here = baggage.set_baggage(f"key{number}", "x" * 60, here)
        with trace.get_tracer("app").start_as_current_span(
            "post",
            kind=trace.SpanKind.CLIENT,
            attributes={"server.address": "localhost"},
        ) as span:
            propagate.inject({}, trace.set_span_in_context(span, here))


def script() -> None:
    """A worker: runs in a loop of its own, and an end."""

    async def work() -> None:
        async with hangup.run(name="job"):
            chat()
            await asyncio.sleep(0.01)

    stock()
    asyncio.run(work())
    sys.exit(0)


def become(plant: str) -> None:
    program, *variables = plant.split(",")
    for variable in variables:
        key, _, value = variable.partition("=")
        os.environ[key] = value
    globals()[program]()
    wait()


def main() -> None:
    plants = sys.argv[1:]
    if len(plants) > 1:
        for module in PRELOADED:
            importlib.import_module(module)
    for plant in plants:
        if len(plants) == 1 or os.fork() == 0:
            sys.argv[1:] = [plant]
            become(plant)
    wait()


if __name__ == "__main__":
    main()
