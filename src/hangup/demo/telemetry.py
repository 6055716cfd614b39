"""What an agent process installs, and what it tells the harness about itself.

Installed as a service would: SDK providers, the OpenAI and HTTPX instrumentations,
hangup. Anthropic's client makes its own spans and needs no instrumentation. The
plumbing under ``/demo`` stands beside hangup's middleware, not behind it: reading the
numbers does not change them.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from opentelemetry import metrics, trace
from opentelemetry.instrumentation.genai.openai import OpenAIInstrumentor
from opentelemetry.instrumentation.httpx import HTTPXClientInstrumentor
from opentelemetry.sdk.environment_variables import OTEL_EXPORTER_OTLP_ENDPOINT
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, NumberDataPoint
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

import hangup
from hangup.core.registry import live_runs
from hangup.otel import settlement

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.metrics.export import MetricReader
    from opentelemetry.sdk.trace import ReadableSpan, Span
    from starlette.requests import Request
    from starlette.types import ASGIApp, Receive, Scope, Send

USER = "demo.user"
PATH = "demo.path"
"""Span attributes that place a step of the agent in the picture."""


class Telemetry:
    """The providers of this process, instrumented.

    Args:
        provider: Of the model.
        metrics_port: Where on loopback Prometheus may scrape; None is nowhere.

    Raises:
        OSError: That port is taken.
    """

    def __init__(self, provider: str, metrics_port: int | None = None) -> None:
        self._reader = InMemoryMetricReader()
        self._steps = _Steps()
        readers: list[MetricReader] = [self._reader]
        if metrics_port is not None:
            readers.append(_scraped(metrics_port))
        meters = MeterProvider(metric_readers=readers)
        tracers = TracerProvider()
        tracers.add_span_processor(self._steps)
        if os.environ.get(OTEL_EXPORTER_OTLP_ENDPOINT):
            tracers.add_span_processor(_exported())
        metrics.set_meter_provider(meters)
        trace.set_tracer_provider(tracers)
        if provider == "openai":
            OpenAIInstrumentor().instrument()
        HTTPXClientInstrumentor().instrument()
        hangup.instrument(tracer_provider=tracers, meter_provider=meters)

    def beside(self, app: ASGIApp) -> ASGIApp:
        """Return ``app`` with the harness's endpoints beside it."""
        plumbing = Starlette(
            routes=[
                Route("/demo/metrics", self._metrics),
                Route("/demo/idle", self._idle),
                Route("/demo/steps", self._told_steps),
            ]
        )

        async def either(scope: Scope, receive: Receive, send: Send) -> None:
            ours = scope["type"] == "http" and scope["path"].startswith("/demo/")
            await (plumbing if ours else app)(scope, receive, send)

        return either

    async def _metrics(self, _request: Request) -> JSONResponse:
        return JSONResponse(self.points())

    async def _idle(self, _request: Request) -> JSONResponse:
        runs = sum(1 for run in live_runs() if not run.latent)
        held = settlement.observer().held
        open_steps = self._steps.open
        idle = runs == held == open_steps == 0
        state = {"idle": idle, "runs": runs, "held": held, "open_steps": open_steps}
        return JSONResponse(state)

    async def _told_steps(self, _request: Request) -> JSONResponse:
        return JSONResponse(self._steps.told())

    def points(self) -> list[dict[str, Any]]:
        """Return hangup's counters as the SDK's metric reader has them."""
        data = self._reader.get_metrics_data()
        if data is None:
            return []
        return [
            {
                "name": metric.name,
                "attributes": dict(point.attributes or {}),
                "value": point.value,
            }
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name.startswith("hangup.")
            for point in metric.data.data_points
            if isinstance(point, NumberDataPoint)
        ]


def _exported() -> SpanProcessor:
    """Return what sends spans where the environment says; the extra may be missing.

    Raises:
        ImportError: It is; ``pip install 'hangup[otlp]'``.
    """
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import (  # noqa: PLC0415
        OTLPSpanExporter,
    )

    return BatchSpanProcessor(OTLPSpanExporter())


def _scraped(port: int) -> MetricReader:
    """Return a reader for Prometheus, and serve it: its extra may be missing."""
    from prometheus_client import CollectorRegistry  # noqa: PLC0415

    from hangup.otel.openmetrics import (  # noqa: PLC0415
        ExemplarMetricReader,
        serve,
    )

    registry = CollectorRegistry()
    serve(port, "127.0.0.1", registry)
    return ExemplarMetricReader(registry=registry)


class _Steps(SpanProcessor):
    """Remembers the agent's own spans: where each step began and ended.

    It is added before hangup's processor, so that it is told of refused spans too.
    """

    def __init__(self) -> None:
        self._offset = time.time() - time.monotonic()
        self._lock = threading.Lock()
        # Of the demo there are fewer; one that is served goes on for days.
        self._steps: deque[dict[str, Any]] = deque(maxlen=100_000)
        self._open: set[int] = set()

    @property
    def open(self) -> int:
        """How many steps run; also those of runs that are closed."""
        with self._lock:
            return len(self._open)

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        del parent_context  # the SDK's signature
        if USER in (span.attributes or {}):
            with self._lock:
                self._open.add(span.get_span_context().span_id)

    def on_end(self, span: ReadableSpan) -> None:
        attributes = span.attributes or {}
        context, started, ended = span.context, span.start_time, span.end_time
        if USER not in attributes or not (context and started and ended):
            return
        step = {
            "user": attributes[USER],
            "path": attributes[PATH],
            "start": started / 1e9 - self._offset,
            "end": ended / 1e9 - self._offset,
        }
        with self._lock:
            self._open.discard(context.span_id)
            self._steps.append(step)

    def told(self) -> list[dict[str, Any]]:
        with self._lock:
            return list(self._steps)
