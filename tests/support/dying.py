"""An application whose process is told to end; it exports only when it must.

Imported by name in a process of its own. What it exports goes to the file ``SPENT``.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.trace import TracerProvider
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route
from support.tofile import ToFile

import hangup
from hangup.servers.asgi import HangupMiddleware

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.requests import Request


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
