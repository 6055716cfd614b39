"""Cases b5, b6 and b7: what is stopped, how often, and what will not stop."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import time
from statistics import quantiles
from typing import TYPE_CHECKING, Any

import pytest
from starlette.middleware import Middleware
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from support.agents import plain_bhm
from support.core import in_loop
from support.rig import LONG, Caller, rig
from support.waiting import eventually

from hangup.core import registry
from hangup.core.current import current_run
from hangup.demo.brain import Script
from hangup.otel import names
from hangup.servers.asgi import HangupMiddleware

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request

pytestmark = pytest.mark.timeout(60)


def _ours(options: dict[str, Any]) -> Middleware:
    return Middleware(HangupMiddleware, **options)


STACKS: dict[str, Callable[..., list[Middleware]]] = {
    "bare": lambda **options: [_ours(options)],
    "bhm inside": lambda **options: [_ours(options), plain_bhm()],
    "bhm around": lambda **options: [plain_bhm(), _ours(options)],
}
"""Where hangup stands beside function-style middleware, outermost first."""


@pytest.mark.parametrize("mode", ["observe", "enforce"])
def test_b5_gather_leaves_siblings(mode: str) -> None:
    """When one tool fails the run, its siblings stop with it, or are counted as waste.

    Three parallel tools in a plain ``asyncio.gather``: one raises while two stream a
    model. In observe these run on, and all they spend is attributed; in enforce they
    are closed: what came is estimated, and the provider may have gone on.
    """
    script = LONG if mode == "enforce" else Script(tokens=60, input_tokens=20, rate=80)

    @in_loop
    async def check() -> None:
        both_stream = threading.Event()
        failed_at: list[float] = []

        async with rig(script) as rig_:

            async def failing() -> None:
                await asyncio.to_thread(both_stream.wait, 10)
                raise LookupError("the tool failed")

            async def streaming() -> None:
                async for _ in rig_.agent.pieces():
                    pass

            async def agent(request: Request) -> Response:
                try:
                    await asyncio.gather(failing(), streaming(), streaming())
                except LookupError:
                    failed_at.append(time.monotonic())
                    raise
                return JSONResponse({})

            def wrap(app: Any) -> Any:
                return HangupMiddleware(app, mode=mode)

            async with rig_.serving(Route("/", agent), wrap=wrap) as served:
                caller = await Caller.asks(served)
                await rig_.model.log.tokens_count(10 if mode == "enforce" else 50)
                both_stream.set()
                assert (await caller.answer())[0] == 500
                await rig_.model.log.closed_count(2, within=5)
                await rig_.idle(served)
                telemetry = rig_.telemetry
                calls = rig_.model.log.calls
                assert telemetry.abandoned() == {"failed": 1}
                if mode == "enforce":
                    await rig_.closed_in_time(failed_at[0])
                    assert all(call.cut for call in calls)
                    assert telemetry.total(names.OUTCOME_UNKNOWN) == 2
                    assert telemetry.total(names.UNKNOWN_CALLS) == 0
                    assert telemetry.total(names.ESTIMATED_TOKENS) > 0
                    return
                assert not any(call.cut for call in calls)
                await eventually(lambda: telemetry.total(names.CALLS) == 2, 5.0)
                sunk, wasted = telemetry.tokens("sunk"), telemetry.tokens("wasted")
                assert sunk[0] == 40
                assert sunk[1] + wasted[1] == 120
                late = sum(
                    tokens
                    for call in calls
                    for at, tokens in call.chunks
                    if at > failed_at[0]
                )
                # Within a chunk of each call.
                assert wasted[1] == pytest.approx(late, abs=2 * script.chunk_most)

    check()


@pytest.mark.parametrize("order", STACKS)
def test_b6_second_cancel_cuts_cleanup(order: str) -> None:
    """A disconnect, then the deadline: one cancel, one cause, a finished clean-up.

    Whatever stands around the handler: a task group of anyio, as in Starlette's
    function-style middleware, would repeat a cancel at every turn of the loop.
    """

    @in_loop
    async def check() -> None:
        cleaning = threading.Event()
        async with rig(LONG) as rig_:

            async def agent(request: Request) -> Response:
                task = asyncio.current_task()
                run = current_run()
                assert task is not None
                assert run is not None
                cancels = 0
                try:
                    await rig_.agent.ask()
                except asyncio.CancelledError:
                    cancels += 1
                    raise
                finally:
                    cleaning.set()
                    until = run.deadline.at + 0.2
                    while time.monotonic() < until:
                        try:
                            await asyncio.sleep(until - time.monotonic())
                        except asyncio.CancelledError:
                            cancels += 1
                    rig_.agent.seen.append((cancels, run.deadline.remaining()))
                return JSONResponse({})

            async with rig_.serving(
                Route("/", agent),
                wrap=lambda app: app,
                middleware=STACKS[order](budget=1),
            ) as served:
                caller = await Caller.asks(served)
                await rig_.model.log.opened_count(1)
                caller.leaves()
                assert await asyncio.to_thread(cleaning.wait, 5)
                [run] = registry.live_runs()
                left_in_time = run.deadline.remaining() > 0
                await rig_.idle(served)
            assert left_in_time
            [(cancels, remaining)] = rig_.agent.seen
            assert cancels == 1
            assert remaining < 0
            assert rig_.telemetry.abandoned() == {"disconnect": 1}

    check()


SECONDS = 3.0


@pytest.mark.parametrize("order", STACKS)
def test_b7_stubborn_task_spins_cpu(order: str) -> None:
    """A task that eats every stop costs no CPU, hurts nobody, and is reported."""

    @in_loop
    async def check() -> None:
        enough = threading.Event()
        async with rig(LONG, settle=0.3) as rig_:

            async def stubborn(request: Request) -> Response:
                while not enough.is_set():
                    with contextlib.suppress(BaseException):
                        await asyncio.sleep(0.2)
                    with contextlib.suppress(BaseException):
                        await rig_.agent.ask()
                return JSONResponse({})

            async def quick(request: Request) -> Response:
                return JSONResponse({})

            routes = [Route("/stubborn", stubborn), Route("/quick", quick)]
            async with rig_.serving(
                *routes,
                wrap=lambda app: app,
                middleware=STACKS[order](),
            ) as served:
                before, idle = await _served(served, SECONDS)
                caller = await Caller.asks(served, "/stubborn")
                await rig_.model.log.opened_count(1)
                [run] = registry.live_runs()
                killed_at = time.monotonic()
                run.cancel("killed", "by test")
                assert (await caller.answer())[0] == 409
                await rig_.model.log.closed_count(1, within=5)
                await rig_.closed_in_time(killed_at)

                during, busy = await _served(served, SECONDS)
                enough.set()
                await rig_.idle(served)
            # The share of a core that the task adds: server, callers and model are all
            # in this process, and what they cost by themselves is the machine's affair.
            assert busy - idle < 0.10
            # Generous: two cores shared with others. A starved loop is seconds late.
            assert _p90(during) < _p90(before) + 0.1
            telemetry = rig_.telemetry
            assert rig_.model.log.opened == 1
            assert telemetry.total(names.REFUSALS, cause="killed") >= 5
            assert telemetry.total(names.SWALLOWED) == 1
            assert telemetry.total(names.UNSETTLED) == 1
            assert telemetry.abandoned() == {"killed": 1}

    check()


async def _served(served: Any, seconds: float) -> tuple[list[float], float]:
    """Ask ten times a second: how long each took, and the share of a core in use.

    Garbage is left alone meanwhile: to go through what a thousand tests before have
    left costs more than what is measured.
    """
    gc.disable()
    try:
        cpu, wall = time.process_time(), time.monotonic()
        took = []
        while time.monotonic() - wall < seconds:
            took.append(await _timed(served))
            await asyncio.sleep(0.1)
        return took, (time.process_time() - cpu) / (time.monotonic() - wall)
    finally:
        gc.enable()


async def _timed(served: Any) -> float:
    began = time.monotonic()
    status, _, _ = await (await Caller.asks(served, "/quick")).answer()
    assert status == 200
    return time.monotonic() - began


def _p90(times: list[float]) -> float:
    return quantiles(times, n=10)[-1]


def test_the_rig_alone_lets_the_model_run_on_when_nobody_hangs_up() -> None:
    """Without hangup the same handler goes on after its client left: the cases bite."""

    @in_loop
    async def check() -> None:
        script = Script(tokens=20, input_tokens=20, rate=20, first_token=0.05)
        async with rig(script) as rig_:

            async def agent(request: Request) -> Response:
                await rig_.agent.ask()
                return JSONResponse({})

            async with rig_.serving(
                Route("/", agent), wrap=lambda app: app, middleware=[plain_bhm()]
            ) as served:
                caller = await Caller.asks(served)
                await rig_.model.log.opened_count(1)
                caller.leaves()
                await rig_.model.log.closed_count(1)
                await rig_.idle(served)
            [call] = rig_.model.log.calls
            assert not call.cut
            assert call.output_tokens == 20

    check()
