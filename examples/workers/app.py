"""An agent for a server with many workers, and metrics that are right with all of them.

What makes its metrics is chosen by the variables that OpenTelemetry knows anyway, so
that this file serves every command in the README beside it. Under
``opentelemetry-instrument`` the part between the lines is not needed: the same
variables do the same.
"""

import os

from openai import AsyncOpenAI

# ---------------------------------------------------------------------------
from opentelemetry import metrics, trace
from opentelemetry.instrumentation.genai.openai import OpenAIInstrumentor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.trace import TracerProvider
from starlette.applications import Starlette
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route

import hangup
from hangup.servers.asgi import HangupMiddleware

readers = []
exporters = os.environ.get("OTEL_METRICS_EXPORTER", "otlp").split(",")
if "hangup_workers" in exporters:  # Prometheus: one port, the sums of every worker
    from hangup.otel.workers import AutoWorkersMetricReader

    readers.append(AutoWorkersMetricReader())
if "otlp" in exporters:  # a collector: a service.instance.id for every worker
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import (
        OTLPMetricExporter,
    )

    readers.append(PeriodicExportingMetricReader(OTLPMetricExporter()))
metrics.set_meter_provider(MeterProvider(readers))
trace.set_tracer_provider(TracerProvider())
hangup.instrument()
OpenAIInstrumentor().instrument()
# ---------------------------------------------------------------------------

MODEL = os.environ.get("MODEL", "gpt-4o-mini")
clients = {}


def ask(**options):
    # One client for each worker, made in it: an open connection must not be shared.
    client = clients.get(os.getpid()) or clients.setdefault(os.getpid(), AsyncOpenAI())
    messages = [{"role": "user", "content": "Well?"}]
    return client.chat.completions.create(model=MODEL, messages=messages, **options)


async def answer(_request):
    completion = await ask()
    return JSONResponse(
        {
            "answer": completion.choices[0].message.content,
            "worker": os.getpid(),
        }
    )


async def stream(_request):
    async def pieces():
        async with await ask(stream=True) as chunks:
            async for chunk in chunks:
                if chunk.choices:
                    yield chunk.choices[0].delta.content or ""

    return StreamingResponse(pieces(), media_type="text/plain")


async def worker(_request):
    return JSONResponse({"worker": os.getpid()})


routes = [
    Route("/answer", answer),
    Route("/stream", stream),
    Route("/worker", worker),
]
app = HangupMiddleware(Starlette(routes=routes))
