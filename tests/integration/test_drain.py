"""A drained call is let finish and counted to the token: real client, real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
from typing import TYPE_CHECKING, Any

import openai
import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from support.agents import ORDERS
from support.core import settle
from support.scripted import WITHIN, Call, Provider, scripted, whole
from support.servers import Served, get
from support.telemetry import instrumented

import hangup
from hangup.errors import Stop
from hangup.otel import names

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from starlette.requests import Request
    from support.telemetry import Telemetry

CHAT = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m"}
ASK: Any = {"model": "m", "messages": [{"role": "user", "content": "a question"}]}
STREAM: Any = {**ASK, "stream": True, "stream_options": {"include_usage": True}}


class Rig:
    """A provider, a client and what hangup measured."""

    def __init__(
        self, provider: Provider, client: openai.AsyncOpenAI, measured: Telemetry
    ) -> None:
        self.provider = provider
        self.client = client
        self.measured = measured
        self.said: list[str] = []

    async def heard(self, count: int) -> None:
        """Wait until so many pieces have reached the application."""
        async with asyncio.timeout(WITHIN):
            while len(self.said) < count:  # noqa: ASYNC110  the client's loop fills it
                await asyncio.sleep(0)

    def used(self) -> tuple[float, float]:
        """Input and output, sunk and wasted together."""
        sunk, wasted = self.measured.tokens("sunk"), self.measured.tokens("wasted")
        return sunk[0] + wasted[0], sunk[1] + wasted[1]

    def total(self, metric: str, **labels: object) -> float:
        """Return the sum of a metric."""
        return self.measured.total(metric, **labels)


def rigged(check: Callable[[Rig], Awaitable[None]]) -> Callable[[], None]:
    """Run the test on a loop, with a rig."""

    @contextlib.asynccontextmanager
    async def made() -> AsyncIterator[Rig]:
        with instrumented() as measured:
            async with (
                scripted() as provider,
                openai.AsyncOpenAI(base_url=provider.url, api_key="x") as client,
            ):
                yield Rig(provider, client, measured)

    @functools.wraps(check)
    def test() -> None:
        async def main() -> None:
            async with made() as rig, asyncio.timeout(30):
                await check(rig)

        asyncio.run(main())

    del test.__wrapped__  # pytest would ask for a rig
    return test


async def begun(rig: Rig, words: int = 3) -> Call:
    """Let a stream come as far as this."""
    call = await rig.provider.call()
    await call.begin()
    for _ in range(words):
        await call.say("word ")
    return call


async def done(call: Call) -> None:
    """Let it come to its end."""
    await call.say("word ")
    await call.report(10, 40)
    await call.finish()


@rigged
async def test_a_stream_goes_on_to_its_end_and_is_counted_exactly(rig: Rig) -> None:
    abandoned = asyncio.Event()

    async def work() -> None:
        async with hangup.run(name="r") as run:
            async with hangup.drain(budget=10.0):
                with rig.measured.tracer().start_as_current_span("c", attributes=CHAT):
                    stream = await rig.client.chat.completions.create(**STREAM)
                    async for chunk in stream:
                        rig.said += [one.delta.content or "" for one in chunk.choices]
                        if len(rig.said) == 3:
                            run.cancel("disconnect")
                            abandoned.set()
                            await settle()  # nobody reads; it is not to be closed
            await asyncio.Event().wait()

    working = asyncio.create_task(work())
    call = await begun(rig)
    await abandoned.wait()
    await done(call)
    with pytest.raises(hangup.RunCancelled):
        await working
    assert "".join(rig.said) == "word word word word "
    assert rig.used() == (10, 40)
    assert rig.measured.tokens("wasted")[1] > 0
    assert rig.total(names.OUTCOME_UNKNOWN) == rig.total(names.UNKNOWN_CALLS) == 0
    attributes = rig.measured.span("c").attributes or {}
    assert attributes["hangup.drained"] is True
    assert rig.total(names.UNSETTLED) == 0


@rigged
async def test_a_whole_answer_is_waited_for(rig: Rig) -> None:
    async def work() -> None:
        async with hangup.run(name="r", budget=60.0) as run:
            runs.append(run)
            async with hangup.drain():
                answer = await rig.client.chat.completions.create(**ASK)
                rig.said.append(answer.choices[0].message.content or "")
            await asyncio.Event().wait()

    runs: list[hangup.Run] = []
    working = asyncio.create_task(work())
    call = await rig.provider.call()
    runs[0].cancel("disconnect")
    await call.answer(whole(7, 5))
    with pytest.raises(hangup.RunCancelled):
        await working
    assert rig.said == ["well"]
    assert rig.used() == (7, 5)
    assert rig.total(names.OUTCOME_UNKNOWN) == 0


@rigged
async def test_a_stream_that_was_begun_before_the_block_goes_on_too(rig: Rig) -> None:
    abandoned = asyncio.Event()

    async def work() -> None:
        async with hangup.run(name="r") as run:
            asking = rig.client.chat.completions.create(**STREAM)
            stream = await asyncio.create_task(asking)  # on a task of its own
            await anext(stream)
            async with hangup.drain():
                await anext(stream)
                run.cancel("disconnect")
                abandoned.set()
                await settle()
                async for _ in stream:
                    pass
            await asyncio.Event().wait()

    working = asyncio.create_task(work())
    call = await begun(rig)
    await abandoned.wait()
    await done(call)
    with pytest.raises(hangup.RunCancelled):
        await working
    assert rig.used() == (10, 40)
    assert rig.total(names.OUTCOME_UNKNOWN) == 0


@rigged
async def test_beyond_the_budget_it_is_cut(rig: Rig) -> None:
    async def work() -> None:
        async with hangup.run(name="r") as run:
            runs.append(run)
            async with hangup.drain(budget=0.2):
                async for chunk in await rig.client.chat.completions.create(**STREAM):
                    rig.said += [one.delta.content or "" for one in chunk.choices]

    runs: list[hangup.Run] = []
    working = asyncio.create_task(work())
    call = await begun(rig)
    await rig.heard(3)
    runs[0].cancel("disconnect")
    with pytest.raises(hangup.RunCancelled):
        await working
    await call.left()
    abandonment = runs[0].abandonment
    assert abandonment is not None
    assert runs[0].clock.monotonic() - abandonment.noticed_at >= 0.2


@rigged
async def test_a_second_call_inside_is_refused(rig: Rig) -> None:
    async def work() -> None:
        async with hangup.run(name="r") as run:
            runs.append(run)
            async with hangup.drain():
                await rig.client.chat.completions.create(**ASK)
                try:
                    await rig.client.chat.completions.create(**ASK)
                except Stop:
                    rig.said.append("refused")
                    raise

    runs: list[hangup.Run] = []
    working = asyncio.create_task(work())
    call = await rig.provider.call()
    runs[0].cancel("disconnect")
    await call.answer(whole(7, 5))
    with pytest.raises(hangup.RunCancelled):
        await working
    assert rig.said == ["refused"]
    assert rig.provider.requests == 1
    assert rig.total(names.REFUSALS) == 1


@rigged
async def test_a_call_that_fails_is_not_tried_again(rig: Rig) -> None:
    async def work() -> None:
        async with hangup.run(name="r") as run:
            runs.append(run)
            async with hangup.drain():
                await rig.client.chat.completions.create(**ASK)

    runs: list[hangup.Run] = []
    working = asyncio.create_task(work())
    call = await rig.provider.call()
    runs[0].cancel("disconnect")
    await call.answer({"error": {}}, status=500, retry_after="0")
    with pytest.raises(hangup.RunCancelled):
        await working
    assert rig.provider.requests == 1


@rigged
async def test_a_thread_reads_on_to_the_end(rig: Rig) -> None:
    abandoned = threading.Event()

    def read(url: str) -> None:
        with openai.OpenAI(base_url=url, api_key="x", max_retries=0) as client:
            stream = client.chat.completions.create(**STREAM)
            rig.said.append(next(stream).choices[0].delta.content or "")
            with hangup.drain(budget=10.0):
                for chunk in stream:
                    rig.said.extend(one.delta.content or "" for one in chunk.choices)
                    if len(rig.said) == 3:
                        assert abandoned.wait(WITHIN)

    async def work() -> None:
        async with hangup.run(name="r", budget=60.0) as run:
            runs.append(run)
            await hangup.to_thread(read, rig.provider.url)

    runs: list[hangup.Run] = []
    working = asyncio.create_task(work())
    call = await begun(rig)
    await rig.heard(3)
    runs[0].cancel("disconnect")
    await settle()  # nobody reads; it is not to be closed
    abandoned.set()
    await done(call)
    with pytest.raises(hangup.RunCancelled):
        await working
    assert "".join(rig.said) == "word word word word "
    assert rig.used() == (10, 40)
    assert rig.total(names.OUTCOME_UNKNOWN) == 0


@rigged
async def test_of_a_run_that_lives_everything_is_delivered(rig: Rig) -> None:
    async with hangup.run(name="r"), hangup.drain():
        asking = asyncio.create_task(rig.client.chat.completions.create(**ASK))
        await (await rig.provider.call()).answer(whole(7, 5))
        await asking
    assert rig.measured.tokens("delivered") == (7, 5)
    assert rig.used() == (0, 0)


@pytest.mark.parametrize("order", ORDERS)
def test_a_handler_whose_client_left_has_its_answer(order: str) -> None:
    """Under a real server, whatever stands around the handler."""
    left, said = threading.Event(), []

    async def main() -> None:
        with instrumented() as measured:
            async with scripted() as provider:

                async def agent(_request: Request) -> Response:
                    run = hangup.current_run()
                    assert run is not None
                    run.on_abandon(lambda _: left.set())
                    async with (
                        hangup.drain(budget=10.0),
                        openai.AsyncOpenAI(
                            base_url=provider.url, api_key="x"
                        ) as client,
                    ):
                        answer = await client.chat.completions.create(**ASK)
                        said.append(answer.choices[0].message.content)
                    return JSONResponse({})

                app = Starlette(routes=[Route("/", agent)], middleware=ORDERS[order]())
                with Served(app) as server:
                    asking = await asyncio.to_thread(get, server, "/")
                    call = await provider.call()
                    asking.close()
                    assert await asyncio.to_thread(left.wait, WITHIN)
                    await call.answer(whole(7, 5))
                    async with asyncio.timeout(WITHIN):
                        while not measured.total(names.RUNS):  # noqa: ASYNC110
                            await asyncio.sleep(0.01)
                sunk, wasted = measured.tokens("sunk"), measured.tokens("wasted")
                assert said == ["well"]
                assert (sunk[0] + wasted[0], sunk[1] + wasted[1]) == (7, 5)
                assert measured.total(names.OUTCOME_UNKNOWN) == 0

    asyncio.run(main())
