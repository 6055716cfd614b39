"""Whatever is instrumented before hangup or after it, and taken off again first.

FastAPI, httpx and OpenAI by their own instrumentations, a real server and a client that
leaves; nothing in the application is hangup's.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Any

import fastapi
import httpx
import pytest
from openai import AsyncOpenAI
from opentelemetry import baggage
from opentelemetry.instrumentation.fastapi import FastAPIInstrumentor
from opentelemetry.instrumentation.genai.openai import OpenAIInstrumentor
from opentelemetry.instrumentation.httpx import HTTPXClientInstrumentor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import SpanKind, StatusCode
from starlette.applications import Starlette
from starlette.responses import StreamingResponse
from support.core import in_loop
from support.rig import MODEL, SHORT, Caller
from support.servers import Served
from support.telemetry import Telemetry

import hangup
from hangup.demo.brain import Script
from hangup.demo.model_server import ModelServer
from hangup.otel import names
from hangup.otel.instrumentor import HangupInstrumentor

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

SLOW = Script(tokens=20, input_tokens=20, rate=20, first_token=0.05)
OTHERS = (FastAPIInstrumentor, HTTPXClientInstrumentor, OpenAIInstrumentor)
CHATTY = Script(tokens=400, input_tokens=20, rate=10, first_token=0.02)
LEAVE = 40
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
def _instrumented(
    order: tuple[Any, ...], *, reverse: bool = True, **settings: Any
) -> Iterator[Telemetry]:
    telemetry = Telemetry()
    given = {
        "tracer_provider": telemetry.tracer_provider,
        "meter_provider": telemetry.meter_provider,
    }
    for instrumentor in order:
        ours = instrumentor is HangupInstrumentor
        more = {"brake_share": 100, **settings} if ours else {}
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
    async with _served(_agent(model)) as served:
        status, _, _ = await (await Caller.asks(served, "/ask/quick")).answer()
        assert status == 200
        caller = await Caller.asks(served, f"/ask/{MODEL}")
        await model.log.opened_count(2)
        caller.leaves()
        await _abandoned(telemetry, 1)
        await asyncio.to_thread(served.idle)
        # Nobody has asked for more than to look: it went on to its end.
        assert not model.log.calls[1].cut
        assert sum(telemetry.tokens("sunk")) + sum(telemetry.tokens("wasted")) == 40
        runs = telemetry.series(names.RUNS)[names.RUNS]
        counted = {
            (row.labels[names.RUN_NAME], row.labels[names.MODE]): row.value
            for row in runs
            if row.value and row.labels[names.OUTCOME] == "delivered"
        }
        assert counted == {("/ask/{name}", "observe"): 1}
        assert telemetry.tokens("delivered") == (20, 8)


async def _abandoned(telemetry: Telemetry, count: int) -> None:
    async with asyncio.timeout(10):
        while telemetry.abandoned() != {"disconnect": count}:  # noqa: ASYNC110  a thread
            await asyncio.sleep(0.02)


def _agent(model: ModelServer) -> fastapi.FastAPI:
    app = fastapi.FastAPI()

    @contextlib.asynccontextmanager
    async def asked(name: str, **options: Any) -> AsyncIterator[Any]:
        async with AsyncOpenAI(base_url=model.base_url, api_key="test") as client:
            yield await client.chat.completions.create(
                model=name, messages=[{"role": "user", "content": "Well?"}], **options
            )

    @app.get("/ask/{name}")
    async def ask(name: str) -> dict[str, str]:
        async with asked(name) as completion:
            return {"answer": completion.choices[0].message.content or ""}

    @app.get("/stream/{name}")
    async def stream(name: str) -> StreamingResponse:
        async def pieces() -> AsyncIterator[str]:
            async with asked(name, stream=True) as stream:
                async for chunk in stream:
                    if chunk.choices:
                        yield f"data: {chunk.choices[0].delta.content}\n\n"

        return StreamingResponse(pieces(), media_type="text/event-stream")

    @app.get("/here")
    async def here() -> dict[str, Any]:
        run = hangup.current_run()
        assert run is not None
        found = [run.id, run.latent, run.deadline.is_set, dict(baggage.get_all())]
        return {"found": found}

    return app


@contextlib.asynccontextmanager
async def _served(app: Any) -> AsyncIterator[Served]:
    served = Served(app)
    await asyncio.to_thread(served.__enter__)
    try:
        yield served
    finally:
        await asyncio.to_thread(served.__exit__, None, None, None)


@pytest.mark.parametrize("order", ORDERS)
def test_c1_detach_noise_whatever_is_set_up_first(
    order: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Abandoned streams are not heard of again, nor by the requests that follow."""
    caplog.set_level(logging.INFO)

    @in_loop
    async def check() -> None:
        async with ModelServer(default=CHATTY) as model:
            with _instrumented(ORDERS[order], mode="enforce") as telemetry:
                async with _served(_agent(model)) as served:
                    await asyncio.gather(
                        *(_walks_away(served, model) for _ in range(LEAVE))
                    )
                    await asyncio.to_thread(served.idle)
                    await model.log.closed_count(LEAVE, within=5)
                    await _abandoned(telemetry, LEAVE)
                    answers = await asyncio.gather(
                        *(Caller.asks(served, "/here") for _ in range(LEAVE))
                    )
                    found = [(await one.json())["found"] for one in answers]
                    assert len({run for run, *_ in found}) == LEAVE
                    assert all(rest == [True, False, {}] for _, *rest in found)
                _c10_and_c14(telemetry)

    check()
    assert "ended span" not in caplog.text
    assert "detach" not in caplog.text


async def _walks_away(served: Served, model: ModelServer) -> None:
    caller = await Caller.asks(served, f"/stream/{MODEL}")
    await caller._reader.readuntil(b"data: ")
    caller.leaves()


def _c10_and_c14(telemetry: Telemetry) -> None:
    """The server's span says why, in time; and a disconnect is nobody's error."""
    servers = [span for span in telemetry.spans() if span.kind is SpanKind.SERVER]
    told = [span for span in servers if names.CAUSE in (span.attributes or {})]
    assert len(told) == LEAVE
    for span in telemetry.spans():
        attributes = span.attributes or {}
        assert attributes.get(names.CAUSE, "disconnect") == "disconnect"
        if names.CAUSE in attributes:
            assert span.status.status_code is not StatusCode.ERROR
        assert not any(
            event.name == "exception"
            and "Cancelled" in str((event.attributes or {}).get("exception.type"))
            for event in span.events
        )
