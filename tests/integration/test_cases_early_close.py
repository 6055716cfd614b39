"""Case c3: however a stream is left, its call is counted once and then forgotten."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

import pytest
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from support.core import in_loop
from support.rig import LONG, MODEL, Agent, Caller, rig

from hangup.core import registry
from hangup.otel import names
from hangup.otel.instrumentor import HangupInstrumentor

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.requests import Request

    Exit = Callable[[Agent], Awaitable[Response]]

pytestmark = pytest.mark.timeout(60)


async def opened(agent: Agent) -> Any:
    return await agent.client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "Well?"}], stream=True
    )


async def client_leaves(agent: Agent) -> Response:
    return StreamingResponse(agent.pieces())


async def break_inside_with(agent: Agent) -> Response:
    async with await opened(agent) as stream:
        async for _ in stream:
            break
    return JSONResponse({})


async def bare_close(agent: Agent) -> Response:
    stream = await opened(agent)
    await anext(stream.__aiter__())
    await stream.close()
    return JSONResponse({})


async def dropped(agent: Agent) -> Response:
    stream = await opened(agent)
    await anext(stream.__aiter__())
    del stream
    gc.collect()
    return JSONResponse({})


EXITS: tuple[Exit, ...] = (client_leaves, break_inside_with, bare_close, dropped)


@pytest.mark.parametrize("way", EXITS)
def test_c3_span_lost_on_early_close(way: Exit) -> None:
    """Whether or not the span of the vendor ever ends."""

    @in_loop
    async def check() -> None:
        async with rig(LONG) as rig_:

            async def handler(request: Request) -> Response:
                return await way(rig_.agent)

            async with rig_.serving(Route("/", handler)) as served:
                caller = await Caller.asks(served)
                await rig_.model.log.opened_count(1)
                if way is client_leaves:
                    await caller.begins()
                    await rig_.model.log.tokens_count(2)
                    caller.leaves()
                else:
                    assert (await caller.answer())[0] == 200
                await rig_.model.log.closed_count(1, within=5)
                await rig_.idle(served)
            gc.collect()
            telemetry = rig_.telemetry
            assert telemetry.total(names.RUNS) == 1
            left = {"disconnect": 1} if way is client_leaves else {}
            assert telemetry.abandoned() == left
            assert telemetry.total(names.CALLS) == 1
            # Whoever leaves may do so before anything of the answer was read here.
            known = telemetry.total(names.TOKENS, type="output")
            assert known or (
                way is client_leaves and telemetry.total(names.UNKNOWN_CALLS) == 1
            )
            spent, booked = (
                telemetry.total(names.METERED_TOKENS),
                telemetry.total(names.TOKENS),
            )
            assert spent == booked
            chats = [one for one in telemetry.spans() if one.name.startswith("chat")]
            assert len(chats) <= 1
            assert HangupInstrumentor()._recorder.open_calls == 0
            assert registry.live_runs() == ()

    check()
