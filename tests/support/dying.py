"""An application whose process is told to end; it exports only when it must.

Imported by name in a process of its own. What it exports goes to the file ``SPENT``.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import (
    MetricExporter,
    MetricExportResult,
    MetricsData,
    PeriodicExportingMetricReader,
)
from opentelemetry.sdk.trace import TracerProvider
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route

import hangup
from hangup.servers.asgi import HangupMiddleware

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.requests import Request


class ToFile(MetricExporter):
    """Writes the last state of ``hangup.tokens`` and ``hangup.runs``."""

    def export(
        self, metrics_data: MetricsData, timeout_millis: float = 0, **_options: object
    ) -> MetricExportResult:
        rows: list[Any] = [
            [metric.name, dict(point.attributes or {}), getattr(point, "value", None)]
            for resource in metrics_data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name in ("hangup.tokens", "hangup.runs")
            for point in metric.data.data_points
        ]
        Path(os.environ["SPENT"]).write_text(json.dumps(rows))
        return MetricExportResult.SUCCESS

    def shutdown(self, timeout_millis: float = 0, **_options: object) -> None: ...

    def force_flush(self, timeout_millis: float = 0) -> bool:
        return True


provider = TracerProvider()
# An hour between two exports: whatever is in the file was flushed.
meters = MeterProvider([PeriodicExportingMetricReader(ToFile(), 3_600_000)])
hangup.instrument(tracer_provider=provider, meter_provider=meters, mode="enforce")
tracer = provider.get_tracer("test")


async def spend(seconds: float) -> None:
    """Make a call of 7 and 3 tokens, and go on for a while."""
    attributes: dict[str, str | int] = {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "gpt-4o",
        "gen_ai.usage.input_tokens": 7,
        "gen_ai.usage.output_tokens": 3,
    }
    with tracer.start_as_current_span("chat", attributes=attributes):
        pass
    await asyncio.sleep(seconds)


async def job() -> None:
    """Work that no request waits for."""
    with contextlib.suppress(hangup.RunAbandoned):
        async with hangup.run(name="job"):
            await spend(60)


@contextlib.asynccontextmanager
async def lifespan(_app: Starlette) -> AsyncIterator[None]:
    working = asyncio.create_task(job())
    yield
    assert not working.done()


async def agent(request: Request) -> Response:
    await spend(float(request.query_params["seconds"]))
    return Response("answer")


app = HangupMiddleware(
    Starlette(routes=[Route("/agent", agent)], lifespan=lifespan), name="agent"
)
