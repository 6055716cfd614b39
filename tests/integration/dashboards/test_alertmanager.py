"""The pager: what goes wrong in hangup reaches whoever is on call."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import httpx
import pytest
from dashboards import files
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.trace import TracerProvider
from prometheus_client import CollectorRegistry, start_http_server
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from support.alertmanager import Alertmanager
from support.prometheus import JOB, Prometheus
from support.servers import Served

import hangup
from hangup.servers.asgi import HangupMiddleware

if TYPE_CHECKING:
    from pathlib import Path

    from starlette.requests import Request
    from starlette.responses import Response

HURRY = {"x-hangup-budget": "0.001"}
CHAT = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "gpt-4o"}
ALERT = "HangupBrakeTripped"


def app_of(tracers: TracerProvider) -> HangupMiddleware:
    """An agent whose callers give it no time, for once."""

    async def ask(_request: Request) -> Response:
        with tracers.get_tracer("test").start_as_current_span("chat", attributes=CHAT):
            await asyncio.sleep(60)
        return PlainTextResponse("never")

    return HangupMiddleware(Starlette(routes=[Route("/", ask)]))


@pytest.mark.wide
@pytest.mark.timeout(180)
def test_a_brake_that_trips_is_told_to_alertmanager(tmp_path: Path) -> None:
    registry = CollectorRegistry()
    meters = MeterProvider([PrometheusMetricReader(registry=registry)])
    tracers = TracerProvider()
    server, thread = start_http_server(0, "127.0.0.1", registry)
    hangup.instrument(
        tracer_provider=tracers, meter_provider=meters, brake_runs=5, brake_share=20
    )
    try:
        rules = files.prometheus_rules()
        with (
            Alertmanager(tmp_path) as manager,
            Prometheus(
                tmp_path, server.server_port, rules, manager.address
            ) as prometheus,
        ):
            tripped = "hangup_brake_tripped_total"
            prometheus.until(lambda: prometheus.number(tripped) == 0)
            assert manager.alerts() == []
            with Served(app_of(tracers)) as served:
                for _ in range(5):
                    answer = httpx.get(served.url, headers=HURRY, timeout=30)
                    assert answer.status_code == 504
            prometheus.until(manager.alerts)
            [alert] = manager.alerts()
    finally:
        hangup.uninstrument()
        server.shutdown()
        server.server_close()
        thread.join()
        meters.shutdown()
    assert alert["status"]["state"] == "active"
    labels, annotations = alert["labels"], alert["annotations"]
    assert (labels["alertname"], labels["severity"]) == (ALERT, "page")
    assert labels["job"] == JOB
    assert annotations["runbook_url"].endswith(f"#{ALERT.lower()}")
    assert annotations["summary"]
