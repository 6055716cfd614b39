"""A stock worker on asyncio that sets OpenTelemetry up in code and opens its runs."""

from __future__ import annotations

import asyncio
import os

from openai import AsyncOpenAI
from opentelemetry import metrics, trace
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.instrumentation.genai.openai import OpenAIInstrumentor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

import hangup

tracers = TracerProvider()
tracers.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
trace.set_tracer_provider(tracers)
reader = PeriodicExportingMetricReader(OTLPMetricExporter())
metrics.set_meter_provider(MeterProvider([reader]))
hangup.instrument()
OpenAIInstrumentor().instrument()


async def main() -> None:
    client = AsyncOpenAI(api_key="x", base_url=os.environ["MODEL_URL"] + "/v1")
    while True:
        async with hangup.run(budget=30, name="job"):
            stream = await client.chat.completions.create(
                model="gpt-4o-mini",
                messages=[{"role": "user", "content": "Well?"}],
                stream=True,
                stream_options={"include_usage": True},
            )
            async for _ in stream:
                pass
        await asyncio.sleep(0.5)


asyncio.run(main())
