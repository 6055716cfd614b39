"""Whatever is instrumented before hangup or after it, and taken off again first.

FastAPI, httpx and OpenAI by their own instrumentations, a real server and a client that
leaves; nothing in the application is hangup's.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import fastapi
import httpx
import pytest
from openai import AsyncOpenAI
from opentelemetry.instrumentation.fastapi import FastAPIInstrumentor
from opentelemetry.instrumentation.genai.openai import OpenAIInstrumentor
from opentelemetry.instrumentation.httpx import HTTPXClientInstrumentor
from opentelemetry.sdk.trace import TracerProvider
from starlette.applications import Starlette
from support.core import in_loop
from support.rig import MODEL, SHORT, Caller
from support.servers import Served
from support.telemetry import Telemetry

from hangup.demo.brain import Script
from hangup.demo.model_server import ModelServer
from hangup.otel.instrumentor import HangupInstrumentor

if TYPE_CHECKING:
    from collections.abc import Iterator

SLOW = Script(tokens=20, input_tokens=20, rate=20, first_token=0.05)
OTHERS = (FastAPIInstrumentor, HTTPXClientInstrumentor, OpenAIInstrumentor)
ORDERS = {
    "first": (HangupInstrumentor, *OTHERS),
    "between": (FastAPIInstrumentor, HangupInstrumentor, *OTHERS[1:]),
    "last": (*OTHERS, HangupInstrumentor),
}


def _footprint() -> dict[str, Any]:
    return {
        "fastapi": fastapi.FastAPI,
        "starlette": vars(Starlette)["__call__"],
        "provider": TracerProvider.__init__,
        "httpx": vars(httpx.AsyncHTTPTransport)["handle_async_request"],
    }


@contextlib.contextmanager
def _instrumented(order: tuple[Any, ...], *, reverse: bool) -> Iterator[Telemetry]:
    telemetry = Telemetry()
    given = {
        "tracer_provider": telemetry.tracer_provider,
        "meter_provider": telemetry.meter_provider,
    }
    for instrumentor in order:
        more = {"brake_share": 100} if instrumentor is HangupInstrumentor else {}
        instrumentor().instrument(**given, **more)
        instrumentor().instrument(**more)  # twice counts once
    try:
        yield telemetry
    finally:
        for instrumentor in reversed(order) if reverse else order:
            instrumentor().uninstrument()


@pytest.mark.parametrize("reverse", [True, False])
@pytest.mark.parametrize("order", ORDERS)
def test_the_order_of_instrumentations_does_not_matter(
    order: str,
    reverse: bool,  # noqa: FBT001  a parameter of the test
) -> None:
    before = _footprint()

    @in_loop
    async def check() -> None:
        async with ModelServer(default=SLOW) as model:
            model.script("quick", SHORT)
            with _instrumented(ORDERS[order], reverse=reverse) as telemetry:
                await _visited(model, telemetry)

    check()
    assert _footprint() == before


async def _visited(model: ModelServer, telemetry: Telemetry) -> None:
    app = fastapi.FastAPI()

    @app.get("/ask/{name}")
    async def ask(name: str) -> dict[str, str]:
        async with AsyncOpenAI(base_url=model.base_url, api_key="test") as client:
            completion = await client.chat.completions.create(
                model=name, messages=[{"role": "user", "content": "Well?"}]
            )
        return {"answer": completion.choices[0].message.content or ""}

    served = Served(app)
    await asyncio.to_thread(served.__enter__)
    try:
        status, _, _ = await (await Caller.asks(served, "/ask/quick")).answer()
        assert status == 200
        caller = await Caller.asks(served, f"/ask/{MODEL}")
        await model.log.opened_count(2)
        caller.leaves()
        async with asyncio.timeout(10):
            while telemetry.abandoned() != {"disconnect": 1}:  # noqa: ASYNC110  a thread
                await asyncio.sleep(0.02)
        await asyncio.to_thread(served.idle)
        # Nobody has asked for more than to look: it went on to its end.
        assert not model.log.calls[1].cut
        assert sum(telemetry.tokens("sunk")) + sum(telemetry.tokens("wasted")) == 40
        runs = telemetry.series("hangup.runs")["hangup.runs"]
        counted = {
            (row.labels["hangup.run.name"], row.labels["hangup.mode"]): row.value
            for row in runs
            if row.value and row.labels["hangup.outcome"] == "delivered"
        }
        assert counted == {("/ask/{name}", "observe"): 1}
        assert telemetry.tokens("delivered") == (20, 8)
    finally:
        await asyncio.to_thread(served.__exit__, None, None, None)
