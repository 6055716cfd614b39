"""Case a6: blocking code on a real server stops when its client leaves.

``def`` endpoints and synchronous generators run on worker threads, which nothing can
interrupt: the stop reaches them by their own next chunk or call.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from typing import TYPE_CHECKING, Any

import fastapi
import openai
import pytest
from fastapi.responses import StreamingResponse as FastAPIStream
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from support.core import in_loop
from support.rig import IN_TIME, MODEL, Caller, Rig, rig
from support.servers import Served
from support.waiting import eventually

from hangup.demo.brain import Script
from hangup.otel import names
from hangup.servers.asgi import HangupMiddleware

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from starlette.requests import Request

pytestmark = pytest.mark.timeout(60)

# Its input is as long as the prompt is: what is cut is estimated by that.
LONG = Script(tokens=400, rate=20, first_token=0.05)
SHORT = Script(tokens=8, rate=200, first_token=0.01)
AT_ONCE = 8
"""Walk-aways at a time; a worker thread each."""


class Desk:
    """Blocking handlers, and what became of them.

    Attributes:
        ended: When the ``finally`` of each stream ran.
        caught: What the calls of a handler that eats errors raised.
    """

    def __init__(self, rig_: Rig) -> None:
        self.client = openai.OpenAI(
            base_url=rig_.model.base_url, api_key="test", max_retries=2
        )
        self.ended: list[float] = []
        self.caught: list[BaseException] = []

    def ask(self, **options: Any) -> Any:
        """Make a model call."""
        return self.client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "Well?"}], **options
        )

    def pieces(self) -> Iterator[str]:
        """Stream a model call."""
        try:
            with self.ask(stream=True) as stream:
                for chunk in stream:
                    if chunk.choices:
                        yield chunk.choices[0].delta.content or ""
        finally:
            self.ended.append(time.monotonic())

    def whole(self) -> dict[str, str]:
        """Read a stream to its end."""
        return {"text": "".join(self.pieces())}

    def five_calls(self) -> dict[str, int]:
        """Make five calls one after the other, whatever becomes of each."""
        for _ in range(5):
            try:
                self.ask()
            except Exception as error:  # noqa: BLE001  as error-to-message tools do
                self.caught.append(error)
        self.ended.append(time.monotonic())
        return {"calls": 5}


def starlette_json(desk: Desk) -> Any:
    def endpoint(request: Request) -> Response:
        return JSONResponse(desk.whole())

    return Starlette(routes=[Route("/", endpoint)])


def starlette_stream(desk: Desk) -> Any:
    def endpoint(request: Request) -> Response:
        return StreamingResponse(desk.pieces())

    return Starlette(routes=[Route("/", endpoint)])


def fastapi_json(desk: Desk) -> Any:
    app = fastapi.FastAPI()

    @app.get("/")
    def endpoint() -> dict[str, str]:
        return desk.whole()

    return app


def fastapi_stream(desk: Desk) -> Any:
    app = fastapi.FastAPI()

    @app.get("/")
    async def endpoint() -> FastAPIStream:
        return FastAPIStream(desk.pieces())

    return app


def five_in_sequence(desk: Desk) -> Any:
    def endpoint(request: Request) -> Response:
        return JSONResponse(desk.five_calls())

    return Starlette(routes=[Route("/", endpoint)])


@contextlib.asynccontextmanager
async def serving(
    make: Callable[[Desk], Any],
    script: Script = LONG,
    budget: float | None = None,
    **options: Any,
) -> AsyncIterator[tuple[Rig, Desk, Served]]:
    settings = {"settle": 5.0} | options
    async with rig(script, **settings) as rig_:
        desk = Desk(rig_)
        with desk.client:
            # The first call imports for a good part of a second.
            await asyncio.to_thread(desk.client.models.list)
            assert desk.client.chat.completions
            served = Served(HangupMiddleware(make(desk), budget=budget))
            await asyncio.to_thread(served.__enter__)
            try:
                yield rig_, desk, served
            finally:
                await asyncio.to_thread(served.__exit__, None, None, None)


APPS: dict[str, Callable[[Desk], Any]] = {
    "(i) Starlette, def": starlette_json,
    "(i) FastAPI, def": fastapi_json,
    "(ii) Starlette, generator": starlette_stream,
    "(ii) FastAPI, generator": fastapi_stream,
}


@pytest.mark.parametrize("app", APPS)
def test_a6_sync_generator_and_thread_tools(
    app: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Clients leave in the middle of a stream that a worker thread reads."""

    @in_loop
    async def check() -> None:
        async with serving(APPS[app]) as (rig_, desk, served):
            callers = [await Caller.asks(served) for _ in range(AT_ONCE)]
            log = rig_.model.log
            await log.wait_for(lambda: _all_stream(log.calls, AT_ONCE))
            left = [caller.leaves() for caller in callers]
            await log.closed_count(AT_ONCE)
            await rig_.closed_in_time(max(left))
            await rig_.idle(served)
            await eventually(lambda: len(desk.ended) == AT_ONCE)
            assert max(desk.ended) - max(left) < IN_TIME
            telemetry = rig_.telemetry
            assert telemetry.abandoned() == {"disconnect": AT_ONCE}
            assert telemetry.total(names.UNSETTLED) == 0
            truth = sum(call.output_tokens for call in log.calls)
            booked = telemetry.tokens("sunk")[1] + telemetry.tokens("wasted")[1]
            assert booked == pytest.approx(truth, abs=AT_ONCE * LONG.chunk_most)
            assert telemetry.total(names.TOKENS, fate="delivered") == 0
            assert log.opened == AT_ONCE
            # The server and its threads serve on.
            rig_.model.script(MODEL, SHORT)
            again = [await Caller.asks(served) for _ in range(AT_ONCE)]
            answers = [await caller.answer() for caller in again]
            assert [status for status, _, _ in answers] == [200] * AT_ONCE
            await rig_.idle(served)

    check()
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


def _all_stream(calls: list[Any], count: int) -> bool:
    return len(calls) == count and all(call.chunks for call in calls)


@pytest.mark.parametrize("app", APPS)
def test_a6_the_deadline_stops_blocking_code_too(app: str) -> None:
    """The caller gets its answer, or its end, in time: whatever the thread does."""

    @in_loop
    async def check() -> None:
        async with serving(APPS[app], budget=1.0) as (rig_, desk, served):
            began = time.monotonic()
            callers = [await Caller.asks(served) for _ in range(AT_ONCE)]
            answers = await asyncio.gather(*(one.answer() for one in callers))
            assert time.monotonic() - began < 3.0 + IN_TIME
            await rig_.idle(served)
            whole = "generator" not in app
            assert {status for status, _, _ in answers} == {504 if whole else 200}
            await rig_.model.log.closed_count(rig_.model.log.opened)
            await rig_.closed_in_time(began + 1.0, 3.0)
            await eventually(lambda: len(desk.ended) == AT_ONCE)
            assert max(desk.ended) < began + 3.0 + IN_TIME
            assert rig_.telemetry.abandoned() == {"deadline": AT_ONCE}
            assert rig_.telemetry.total(names.UNSETTLED) == 0

    check()


def test_a6_a_generator_that_waits_for_a_client_who_does_not_read() -> None:
    """It is suspended where nobody takes it up again: its model call is closed at once.

    And so is the generator: no other thread will ever run its ``finally``.
    """

    @in_loop
    async def check() -> None:
        def make(desk: Desk) -> Any:
            def endpoint(request: Request) -> Response:
                return StreamingResponse(piece * 200_000 for piece in desk.pieces())

            return Starlette(routes=[Route("/", endpoint)])

        async with serving(make) as (rig_, desk, served):
            callers = [await Caller.asks(served) for _ in range(2)]
            await rig_.model.log.tokens_count(30)
            left = [caller.leaves() for caller in callers]
            await rig_.model.log.closed_count(2)
            await rig_.closed_in_time(max(left))
            await rig_.idle(served)
            await eventually(lambda: len(desk.ended) == 2)
            assert max(desk.ended) - max(left) < IN_TIME
            assert rig_.telemetry.abandoned() == {"disconnect": 2}

    check()


def test_a6_calls_in_sequence_end_with_the_run() -> None:
    """(iii) A tool that makes five calls, and eats every error, makes no more."""

    @in_loop
    async def check() -> None:
        script = Script(tokens=20, rate=20, first_token=0.05)
        async with serving(five_in_sequence, script) as (rig_, _, served):
            log = rig_.model.log
            callers = [await Caller.asks(served) for _ in range(AT_ONCE)]
            await log.opened_count(AT_ONCE)
            left = [caller.leaves() for caller in callers]
            await rig_.idle(served)
            opened = [call.opened for call in log.calls]
            assert max(opened) < max(left) + IN_TIME
            assert log.opened == AT_ONCE
            assert rig_.telemetry.abandoned() == {"disconnect": AT_ONCE}
            assert rig_.telemetry.total(names.REFUSALS) >= AT_ONCE
            assert rig_.telemetry.total(names.METERED_TOKENS, in_run=False) == 0

    check()


def test_a6_a_thread_that_cannot_be_stopped_is_reported_and_counted() -> None:
    """It waits for what no stop reaches: the run has not settled, and says so."""

    @in_loop
    async def check() -> None:
        script = Script(tokens=20, rate=200, first_token=0.01)
        waits, release = threading.Event(), threading.Event()

        def make(desk: Desk) -> Any:
            def endpoint(request: Request) -> Response:
                desk.ask()
                waits.set()
                release.wait(30)
                return JSONResponse({})

            return Starlette(routes=[Route("/", endpoint)])

        async with serving(make, script, settle=0.2) as (rig_, _, served):
            log, telemetry = rig_.model.log, rig_.telemetry
            caller = await Caller.asks(served)
            await asyncio.to_thread(waits.wait, 30)
            caller.leaves()
            await eventually(lambda: telemetry.total(names.UNSETTLED) == 1)
            release.set()
            await rig_.idle(served)
            [call] = log.calls
            assert telemetry.abandoned() == {"disconnect": 1}
            assert telemetry.tokens("sunk") == (call.input_tokens, call.output_tokens)
            assert telemetry.total(names.UNSETTLED) == 1

    check()
