"""A blocking application whose worker is told to end; it exports only when it must.

Imported by name in a process of its own. What it exports goes to the file ``SPENT``.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.trace import TracerProvider
from support.tofile import ToFile

import hangup
from hangup.servers.wsgi import HangupMiddleware

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from wsgiref.types import StartResponse, WSGIEnvironment

provider = TracerProvider()
# An hour between two exports: whatever is in the file was flushed.
meters = MeterProvider([PeriodicExportingMetricReader(ToFile(), 3_600_000)])
hangup.instrument(tracer_provider=provider, meter_provider=meters, mode="enforce")


def stream(seconds: float) -> Iterator[bytes]:
    """Make a call of 7 and 3 tokens, say so, and go on for a while."""
    attributes: dict[str, str | int] = {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "gpt-4o",
        "gen_ai.usage.input_tokens": 7,
        "gen_ai.usage.output_tokens": 3,
    }
    with provider.get_tracer("test").start_as_current_span(
        "chat", attributes=attributes
    ):
        pass
    yield b"spent"
    time.sleep(seconds)


def agent(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    start_response("200 OK", [("Content-Type", "text/plain")])
    return stream(float(environ["QUERY_STRING"]))


app = HangupMiddleware(agent, name="agent")
