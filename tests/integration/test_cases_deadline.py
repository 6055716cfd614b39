"""Cases e6 and e8: the deadline counts, whoever waits for a slot or eats errors."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Any

import pytest
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from support.core import in_loop
from support.rig import LONG, MODEL, Caller, rig
from support.telemetry import tool

from hangup import config
from hangup.core.current import current_run
from hangup.core.scope import RunScope
from hangup.demo.brain import Script, ToolCall
from hangup.errors import DeadlineExceeded, RunAbandoned
from hangup.otel import names
from hangup.servers.asgi import HangupMiddleware

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.requests import Request
    from support.rig import Rig

pytestmark = pytest.mark.timeout(60)


# e6


RUNS = 10
# 0.7 s: one call fits into a budget, two do not.
STEADY = Script(
    tokens=29, input_tokens=20, rate=40, first_token=0.0, jitter=0.0, chunk_most=1
)
BUDGET = 1.0


def _served_runs(rig_: Rig) -> Any:
    """Runs that a server opens: latent while they wait for a slot."""

    @contextlib.asynccontextmanager
    async def serving() -> AsyncIterator[Any]:
        slot = asyncio.Semaphore(1)

        async def agent(request: Request) -> Response:
            async with slot:
                await rig_.agent.ask()
            return JSONResponse({})

        def wrap(app: Any) -> Any:
            return HangupMiddleware(app, budget=BUDGET, name="queue")

        async with rig_.serving(Route("/", agent), wrap=wrap) as served:

            async def one() -> bool:
                status, headers, _ = await (await Caller.asks(served)).answer()
                assert status in (200, 504)
                if status == 504:
                    assert headers["hangup-cause"] == "deadline"
                return status == 200

            yield one
            await rig_.idle(served)

    return serving()


def _own_runs(rig_: Rig) -> Any:
    """Runs opened in code: cancelled while they wait for a slot."""

    @contextlib.asynccontextmanager
    async def running() -> AsyncIterator[Any]:
        slot = asyncio.Semaphore(1)

        async def one() -> bool:
            try:
                async with RunScope(budget=BUDGET, name="queue"), slot:
                    await rig_.agent.ask()
            except DeadlineExceeded:
                return False
            return True

        async with rig_.agent.talking():
            yield one

    return running()


@pytest.mark.parametrize("opener", [_served_runs, _own_runs])
def test_e6_queue_wait_counts(opener: Any) -> None:
    """Ten runs for one slot: those that waited too long make no call at all."""

    @in_loop
    async def check() -> None:
        async with rig(STEADY) as rig_, opener(rig_) as one:
            # The deadlines lie some milliseconds apart, as the runs were opened: who
            # gets the slot with only those left has too little to begin with.
            config.use(config.with_keywords(config.current(), needs={"inference": 0.1}))
            answers = await asyncio.gather(*(one() for _ in range(RUNS)))
            assert sum(answers) == 1
            assert len(rig_.model.log.calls) <= 2  # the second is cut
            telemetry = rig_.telemetry
            assert telemetry.abandoned() == {"deadline": RUNS - 1}
            assert telemetry.total(names.RUNS) == RUNS
            # A waiter that was stopped gave its place back.
            assert await one()
            assert telemetry.total(names.RUNS, outcome="delivered") == 2
            # Whatever was spent was spent by those that got the slot in time.
            assert telemetry.total(names.CALLS, kind="inference") <= 3
            assert telemetry.total(names.UNKNOWN_CALLS) <= 1
            assert telemetry.total(names.TOKENS, fate="wasted") == 0
            assert telemetry.tokens("delivered") == (40, 58)

    check()


# e8


async def _framework(rig_: Rig, seconds_of_tool: float) -> str:
    """An agent loop as frameworks write it: every error becomes a message.

    It asks the model until it answers, runs the tools it asks for, tells it of whatever
    goes wrong in one, and asks again, with a fallback model, when a call fails.
    """
    tracer = rig_.telemetry.tracer()
    messages: list[Any] = [{"role": "user", "content": "Well?"}]
    for attempt in range(50):
        model = MODEL if attempt % 2 == 0 else "fallback"
        try:
            completion = await rig_.agent.client.chat.completions.create(
                model=model, messages=messages
            )
        except Exception as error:  # noqa: BLE001  as frameworks do
            messages.append({"role": "user", "content": f"It failed: {error}"})
            continue
        message = completion.choices[0].message
        if not message.tool_calls:
            return message.content or ""
        messages.append(message.model_dump())
        for call in message.tool_calls:
            try:
                with tool(tracer, "search"):
                    await asyncio.sleep(seconds_of_tool)
                content = "found"
            except Exception as error:  # noqa: BLE001  as frameworks do
                content = f"The tool failed: {error}"
            messages.append(
                {"role": "tool", "tool_call_id": call.id, "content": content}
            )
    return "gave up"


@pytest.mark.parametrize("mode", ["refuse", "enforce"])
@pytest.mark.parametrize("where", ["in a tool", "in a call"])
def test_e8_deadline_fed_back_to_the_model(where: str, mode: str) -> None:
    """A framework that catches every error asks the model nothing after the deadline.

    In refuse nothing in flight is cut, so the loop ends at its next call.
    """
    budget = 1.0
    tools = (ToolCall("search", {"topic": "x"}),)
    asking = Script(
        tokens=4, input_tokens=20, rate=1_000, first_token=0.01, tool_calls=tools
    )
    slow = Script(tokens=20, input_tokens=20, rate=12, tool_calls=tools)

    @in_loop
    async def check() -> None:
        async with rig(asking if where == "in a tool" else slow) as rig_:

            async def agent(request: Request) -> Response:
                run = current_run()
                assert run is not None
                rig_.agent.seen.append(run)
                return JSONResponse({"answer": await _framework(rig_, 0.2)})

            def wrap(app: Any) -> Any:
                return HangupMiddleware(app, budget=budget, mode=mode)

            async with rig_.serving(Route("/", agent), wrap=wrap) as served:
                status, headers, _ = await (await Caller.asks(served)).answer()
                answered_at = time.monotonic()
                await rig_.idle(served)
                ended_at = time.monotonic()
            assert (status, headers["hangup-cause"]) == (504, "deadline")
            deadline = rig_.agent.seen[0].deadline.at
            calls = rig_.model.log.calls
            assert calls
            # One that was let through in time may reach the model a little after it.
            assert [call for call in calls if call.opened > deadline + 0.5] == []
            assert answered_at < deadline + 1.5
            assert ended_at < deadline + 2.5
            telemetry = rig_.telemetry
            assert telemetry.abandoned() == {"deadline": 1}
            assert telemetry.total(names.RUNS) == 1

    check()


@pytest.mark.parametrize("retries", [3])
def test_e8_a_loop_that_eats_even_the_stop_is_counted_once(retries: int) -> None:
    """Refusals may be many, the abandoned run is one."""

    @in_loop
    async def check() -> None:
        async with rig(LONG) as rig_, rig_.agent.talking():

            async def work() -> None:
                async with RunScope(budget=0.05, name="research", mode="refuse"):
                    await asyncio.sleep(0.06)
                    for _ in range(retries):
                        with contextlib.suppress(BaseException):
                            await rig_.agent.ask()
                    await rig_.agent.ask()

            with pytest.raises(RunAbandoned):
                await work()
            telemetry = rig_.telemetry
            assert rig_.model.log.opened == 0
            assert telemetry.total(names.REFUSALS, cause="deadline") == retries + 1
            assert telemetry.abandoned() == {"deadline": 1}

    check()
