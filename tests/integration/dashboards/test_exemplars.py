"""From the panel to the run: Prometheus knows the trace of a call that was wasted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from prometheus_client import CollectorRegistry, start_http_server
from support.prometheus import Prometheus

import hangup
from hangup.otel.openmetrics import ExemplarMetricReader

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

WASTED = 'hangup_tokens_total{hangup_fate="wasted"}'
CHAT = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "gpt-4o"}


@pytest.fixture
def meters() -> Iterator[tuple[MeterProvider, int]]:
    registry = CollectorRegistry()
    provider = MeterProvider([ExemplarMetricReader(registry=registry)])
    server, thread = start_http_server(0, "127.0.0.1", registry)
    try:
        yield provider, server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
        provider.shutdown()


def wasted_call(tracers: TracerProvider) -> int:
    """Make a call after its run was abandoned; return its trace id."""
    tracer = tracers.get_tracer("test")
    with (
        tracer.start_as_current_span("request") as request,
        hangup.run(name="/ask", mode="observe") as run,
    ):
        run.cancel("disconnect")
        with tracer.start_as_current_span("chat", attributes=CHAT) as span:
            span.set_attribute("gen_ai.usage.input_tokens", 3)
            span.set_attribute("gen_ai.usage.output_tokens", 5)
    return request.get_span_context().trace_id


def test_prometheus_names_the_trace_of_the_wasted_call(
    tmp_path: Path, meters: tuple[MeterProvider, int]
) -> None:
    provider, port = meters
    tracers, unsampled = TracerProvider(), TracerProvider(sampler=ALWAYS_OFF)
    hangup.instrument(tracer_provider=tracers, meter_provider=provider)
    try:
        with Prometheus(tmp_path, port, {"groups": []}) as prometheus:
            prometheus.until(lambda: prometheus.ask("hangup_info"))
            hangup.uninstrument()
            hangup.instrument(tracer_provider=unsampled, meter_provider=provider)
            wasted_call(unsampled)
            hangup.uninstrument()
            hangup.instrument(tracer_provider=tracers, meter_provider=provider)
            sampled = wasted_call(tracers)
            prometheus.until(lambda: prometheus.number(f"sum({WASTED})") == 16)
            prometheus.until(lambda: prometheus.exemplars(WASTED))
            found = prometheus.exemplars(WASTED)
    finally:
        hangup.uninstrument()
    # One of the input, one of the output; of the call that was not sampled none.
    assert {one["labels"]["trace_id"] for one in found} == {
        trace.format_trace_id(sampled)
    }
    assert sorted(float(one["value"]) for one in found) == [3, 5]
