"""Whoever serves others survives the stop of one: pools, queue workers, single flights.

Real sockets and the real OpenAI client. After each test the log is read: no worker died
aloud, and no exception was left unretrieved.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import queue
import threading
from multiprocessing.pool import ThreadPool
from typing import TYPE_CHECKING, Any

import openai
import pytest
from opentelemetry import context as context_api
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from support.core import in_loop
from support.rig import IN_TIME, MODEL, SHORT, Caller, Rig, rig, traced

import hangup
from hangup.demo.brain import Script
from hangup.demo.model_server import ModelServer
from hangup.otel import names

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from starlette.requests import Request
    from support.telemetry import Telemetry

pytestmark = pytest.mark.timeout(60)

LONG = Script(tokens=400, rate=20, first_token=0.05)
PATIENCE = 10.0
ASK: dict[str, Any] = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "Well?"}],
}


@pytest.fixture(autouse=True)
def _quiet(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Nothing was logged as an error, and no thread died of one."""
    died: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", died.append)
    yield
    gc.collect()  # what was never retrieved is told of now
    errors = [one for one in caplog.records if one.levelno >= logging.ERROR]
    assert errors == []
    assert died == []


class Bench:
    """A model, both clients, and the telemetry they report to."""

    def __init__(self, model: ModelServer, telemetry: Telemetry) -> None:
        self.model = model
        self.telemetry = telemetry
        options: dict[str, Any] = {"base_url": model.base_url, "api_key": "x"}
        self.client = openai.AsyncOpenAI(max_retries=0, **options)
        self.blocking = openai.OpenAI(max_retries=0, **options)

    async def ask(self) -> str:
        """Stream from a task; return the text."""
        stream = await self.client.chat.completions.create(
            **ASK, stream=True, stream_options={"include_usage": True}
        )
        async with stream:
            parts = [
                one.choices[0].delta.content async for one in stream if one.choices
            ]
        return "".join(part or "" for part in parts)

    def read(self) -> int:
        """Stream from a thread; return the number of chunks."""
        with self.blocking.chat.completions.create(**ASK, stream=True) as stream:
            return sum(1 for _ in stream)

    def runs(self, **labels: Any) -> float:
        return self.telemetry.total(names.RUNS, **labels)

    def booked(self, run: str) -> float:
        return self.telemetry.total(names.TOKENS, run=run)


@contextlib.asynccontextmanager
async def bench(script: Script = LONG) -> AsyncIterator[Bench]:
    with traced() as telemetry:
        async with ModelServer(default=script) as model:
            one = Bench(model, telemetry)
            async with one.client:
                with one.blocking:
                    # The first calls import for a good part of a second.
                    await one.client.models.list()
                    await asyncio.to_thread(one.blocking.models.list)
                    assert one.client.chat.completions
                    assert one.blocking.chat.completions
                    yield one


# asyncio.gather, told to return exceptions


@pytest.mark.parametrize("how", ["leaves", "is refused"])
def test_gather_with_return_exceptions_does_not_lose_the_stop(how: str) -> None:
    """It takes the stop of every call for a result; the next call is refused."""

    @in_loop
    async def check() -> None:
        async with rig(LONG) as rig_:
            seen: list[Any] = rig_.agent.seen

            async def agent(request: Request) -> Response:
                run = hangup.current_run()
                if run is not None and how == "is refused":
                    run.begin_spending()
                    run.cancel("killed", "by test")
                try:
                    for _ in range(3):
                        calls = (rig_.agent.ask() for _ in range(3))
                        seen.append(
                            await asyncio.gather(*calls, return_exceptions=True)
                        )
                finally:
                    seen.append("end")
                return JSONResponse({})

            async with rig_.serving(Route("/", agent)) as served:
                caller = await Caller.asks(served)
                if how == "leaves":
                    await rig_.model.log.opened_count(3)
                    left = caller.leaves()
                    await rig_.model.log.closed_count(3)
                    await rig_.closed_in_time(left)
                else:
                    assert (await caller.answer())[0] == 409
                await rig_.idle(served)
            opened = 3 if how == "leaves" else 0
            assert rig_.model.log.opened == opened
            assert seen[-1] == "end"
            assert len(seen) <= 2
            cause = "disconnect" if how == "leaves" else "killed"
            assert rig_.telemetry.abandoned() == {cause: 1}
            assert rig_.telemetry.total(names.UNSETTLED) == 0

    check()


# multiprocessing.pool.ThreadPool


@in_loop
async def test_a_thread_pool_outlives_the_stop_of_a_run_that_uses_it() -> None:
    """Its workers take every refusal for an ordinary error: none dies, none hangs."""
    async with bench() as one:
        pool = ThreadPool(2)
        model = one.model

        def work(_: int) -> int:
            return one.read()

        with pytest.raises(hangup.RunCancelled):
            async with hangup.run(name="stopped") as run:
                result = pool.map_async(work, range(6), chunksize=1)
                getting = asyncio.create_task(asyncio.to_thread(result.get, PATIENCE))
                await model.log.tokens_count(10)
                run.cancel("disconnect")
                await getting
        await asyncio.to_thread(result.wait, PATIENCE)
        assert not result.successful()
        assert model.log.opened == 2
        await model.log.closed_count(2)
        assert all(call.cut for call in model.log.calls)
        # What was never asked for: four of six.
        assert one.telemetry.total(names.REFUSALS, run="stopped") == 4

        model.script(MODEL, SHORT)
        async with hangup.run(name="later"):
            chunks = await asyncio.to_thread(pool.map, work, range(4))
        assert all(chunks)
        assert one.runs(run="later", outcome="delivered") == 1
        assert one.telemetry.total(names.METERED_TOKENS, in_run=False) == 0
        pool.close()
        await asyncio.to_thread(pool.join)


# Queue workers


class Consumer:
    """A worker that is started by the first who needs it, and serves all.

    Jobs bring the OpenTelemetry context of whoever put them, as those of message
    brokers do.
    """

    def __init__(self, one: Bench) -> None:
        self._one = one
        self._jobs: asyncio.Queue[tuple[Any, asyncio.Future[str]]] = asyncio.Queue()
        self.errors: list[Exception] = []
        self.task = asyncio.create_task(self._work())

    async def serve(self) -> str:
        """Have a question asked."""
        done: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        await self._jobs.put((context_api.get_current(), done))
        return await done

    async def _work(self) -> None:
        while True:
            context, done = await self._jobs.get()
            token = context_api.attach(context)
            try:
                answer = await self._one.ask()
            except Exception as error:  # noqa: BLE001  a worker goes on
                self.errors.append(error)
                if not done.cancelled():
                    done.set_exception(error)
            else:
                if not done.cancelled():
                    done.set_result(answer)
            finally:
                context_api.detach(token)


@in_loop
async def test_a_queue_worker_born_in_a_stopped_run_serves_later_ones() -> None:
    async with bench(SHORT) as one:
        with pytest.raises(hangup.RunCancelled):
            async with hangup.run(name="stopped") as run:
                consumer = Consumer(one)
                assert await consumer.serve()
                before = one.booked("stopped")
                run.cancel("disconnect")
                await consumer.serve()

        async def later() -> str:
            async with hangup.run(name="later"):
                return await consumer.serve()

        answers = await asyncio.gather(*(later() for _ in range(3)))
        assert all(answers)
        assert not consumer.task.done()
        [call, *rest] = one.model.log.calls
        assert len(rest) == 3
        # What was spent before the stop is booked now; nothing since.
        assert before == 0
        assert one.booked("stopped") == call.total_tokens
        assert one.booked("later") == sum(one.total_tokens for one in rest)
        consumer.task.cancel()


@pytest.mark.parametrize("cause", ["disconnect", "deadline"])
@pytest.mark.parametrize("when", ["in the stream", "before the answer"])
def test_a_queue_worker_that_is_at_work_for_a_stopped_run_goes_on(
    when: str, cause: str
) -> None:
    """Its call is closed in time, by an ordinary error: a cancel would end the worker.

    It was started lazily, in that very run. What is open there when the stop comes, in
    a connect or past it, it does not matter.
    """

    @in_loop
    async def check() -> None:
        script = LONG if when == "in the stream" else Script(silent=True)
        async with bench(script) as one:
            model = one.model
            budget = 1.0 if cause == "deadline" else None
            with pytest.raises(hangup.RunAbandoned):
                async with hangup.run(budget, name="stopped") as run:
                    consumer = Consumer(one)
                    serving = asyncio.create_task(consumer.serve())
                    await model.log.opened_count(1)
                    if when == "in the stream":
                        await model.log.tokens_count(3)
                    if cause == "disconnect":
                        run.cancel("disconnect")
                    await serving
            await model.log.closed_count(1)
            [call] = model.log.calls
            assert call.cut
            assert call.closed is not None
            assert run.abandonment is not None
            assert run.abandonment.cause == cause
            assert call.closed - run.abandonment.at < IN_TIME
            assert one.telemetry.total(names.UNSETTLED) == 0

            model.script(MODEL, SHORT)
            before = one.booked("stopped")
            async with hangup.run(name="later"):
                assert await consumer.serve()
            assert not consumer.task.done()
            assert [type(error) for error in consumer.errors] == [type(run.error())]
            assert one.booked("stopped") == before
            assert one.booked("later") == model.log.calls[1].total_tokens
            consumer.task.cancel()

    check()


class ThreadConsumer:
    """The same on a thread, with a queue of the standard library; jobs bring nothing.

    Each job is a run of its own.
    """

    def __init__(self, one: Bench) -> None:
        self._one = one
        self._jobs: queue.Queue[tuple[str, Callable[[Any], None]] | None] = (
            queue.Queue()
        )
        self.thread = threading.Thread(target=self._work, daemon=True)
        self.thread.start()

    async def serve(self, name: str) -> Any:
        """Have a question asked."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Any] = loop.create_future()

        def tell(result: Any) -> None:
            loop.call_soon_threadsafe(_set, done, result)

        self._jobs.put((name, tell))
        return await done

    def close(self) -> None:
        self._jobs.put(None)
        self.thread.join(PATIENCE)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            name, tell = job
            try:
                with hangup.run(name=name):
                    result: Any = self._one.read()
            except Exception as error:  # noqa: BLE001  a worker goes on
                result = error
            tell(result)


def _set(done: asyncio.Future[Any], result: Any) -> None:
    if not done.done():
        done.set_result(result)


@in_loop
async def test_a_queue_worker_thread_born_in_a_stopped_run_serves_later_ones() -> None:
    """It was at work for that run when the stop came: its call is cut, it goes on."""
    async with bench() as one:
        model = one.model
        with pytest.raises(hangup.RunCancelled):
            async with hangup.run(name="stopped") as run:
                consumer = ThreadConsumer(one)
                serving = asyncio.create_task(consumer.serve("first"))
                await model.log.tokens_count(5)
                run.cancel("disconnect")
                await serving
        await model.log.closed_count(1)
        [call] = model.log.calls
        assert call.cut
        assert call.closed is not None
        assert run.abandonment is not None
        assert call.closed - run.abandonment.at < IN_TIME

        model.script(MODEL, SHORT)
        chunks = [await consumer.serve("later") for _ in range(3)]
        assert all(isinstance(count, int) and count for count in chunks)
        assert consumer.thread.is_alive()
        assert one.runs(run="later", outcome="delivered") == 3
        assert one.telemetry.total(names.METERED_TOKENS, in_run=False) == 0
        assert one.runs(run="stopped", outcome="abandoned") == 1
        consumer.close()


# Single flight


@pytest.mark.parametrize("began", ["stopped", "healthy"])
def test_a_single_flight_shared_with_a_healthy_run_serves_that(began: str) -> None:
    """Whoever of the two began it: the stop of one takes nothing from the other."""

    @in_loop
    async def check() -> None:
        script = Script(tokens=20, rate=40, first_token=0.05)
        async with rig(script) as rig_:
            flight: list[asyncio.Task[Any]] = []

            async def agent(request: Request) -> Response:
                if not flight:
                    flight.append(asyncio.create_task(rig_.agent.ask()))
                answer = await asyncio.shield(flight[0])
                return JSONResponse({"text": answer.choices[0].message.content})

            async with rig_.serving(Route("/{who}", agent)) as served:
                await shared(rig_, served, began)
                await rig_.idle(served)
            [call] = rig_.model.log.calls
            assert not call.cut
            assert call.output_tokens == 20
            telemetry = rig_.telemetry
            assert telemetry.total(names.METERED_TOKENS) == call.total_tokens
            assert rig_.model.log.opened == 1

    check()


async def shared(rig_: Rig, served: Any, began: str) -> None:
    """Two ask, one leaves, and the other gets the answer."""
    other = "healthy" if began == "stopped" else "stopped"
    first = await Caller.asks(served, f"/{began}")
    await rig_.model.log.opened_count(1)
    second = await Caller.asks(served, f"/{other}")
    leaver, stayer = (first, second) if began == "stopped" else (second, first)
    await rig_.model.log.tokens_count(5)
    leaver.leaves()
    status, _, body = await stayer.answer()
    assert status == 200
    assert b"text" in body
