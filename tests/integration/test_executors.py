"""Case c8: what runs on another thread is of the run, in every way to get there.

Real sockets, the real synchronous OpenAI client, and its real instrumentation.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from multiprocessing.pool import ThreadPool
from typing import TYPE_CHECKING, Any

import openai
import pytest
from support.core import in_loop
from support.rig import IN_TIME, MODEL, SHORT, traced
from support.waiting import eventually

import hangup
from hangup.clients import threads
from hangup.demo.brain import Script
from hangup.demo.model_server import ModelServer
from hangup.otel import names

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

    from support.telemetry import Telemetry

pytestmark = pytest.mark.timeout(60)

# Its input is as long as the prompt is: what is cut is estimated by that.
LONG = Script(tokens=400, rate=20, first_token=0.05)
BUDGET = 2.0
PATIENCE = 10.0


class Agent:
    """Blocking code with a synchronous client.

    Attributes:
        caught: What its calls raised, by who asked.
        ended: Who has ended.
        model: The model server; its log is the truth.
    """

    def __init__(self, model: ModelServer, telemetry: Telemetry) -> None:
        self.model = model
        self.telemetry = telemetry
        self.caught: dict[str, list[BaseException]] = defaultdict(list)
        self.ended: set[str] = set()
        self.client = openai.OpenAI(
            base_url=model.base_url, api_key="test", max_retries=0
        )

    def ask(self, user: str, **options: Any) -> Any:
        """Make a model call that is not a stream."""
        return self.client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "Well?"}],
            extra_headers={"x-demo-user": user},
            **options,
        )

    def read(self, user: str) -> int:
        """Stream a model call to its end; return how many chunks came."""
        options: dict[str, Any] = {"include_usage": True}
        with self.ask(user, stream=True, stream_options=options) as stream:
            return sum(1 for _ in stream)

    def two_calls(self, user: str) -> None:
        """Read a long stream, and ask once more from the same thread."""
        try:
            for call in (self.read, self.ask):
                try:
                    call(user)
                except Exception as error:  # noqa: BLE001  as tools do
                    self.caught[user].append(error)
        except hangup.Stop as stop:
            self.caught[user].append(stop)
            raise
        finally:
            self.ended.add(user)


@contextlib.asynccontextmanager
async def agent(script: Script = LONG, **options: Any) -> AsyncIterator[Agent]:
    with traced(**options) as telemetry:
        async with ModelServer(default=script) as model:
            one = Agent(model, telemetry)
            with one.client:
                # The first call imports for a good part of a second.
                await asyncio.to_thread(one.client.models.list)
                assert one.client.chat.completions
                yield one


@contextlib.contextmanager
def executor() -> Iterator[ThreadPoolExecutor]:
    """A pool that is not waited for: the model is served on this very loop."""
    pool = ThreadPoolExecutor(1)
    try:
        yield pool
    finally:
        pool.shutdown(wait=False)


async def by_run_in_executor(work: Callable[[], None]) -> None:
    with executor() as pool:
        await asyncio.get_running_loop().run_in_executor(pool, work)


async def by_submit(work: Callable[[], None]) -> None:
    with executor() as pool:
        await asyncio.wrap_future(pool.submit(work))


async def by_map(work: Callable[[], None]) -> None:
    with executor() as pool:
        results = pool.map(lambda _: work(), [0])
        await asyncio.to_thread(list, results)


async def by_thread_pool(work: Callable[[], None]) -> None:
    pool = ThreadPool(1)
    result = pool.apply_async(work)
    pool.close()
    await asyncio.to_thread(result.get, PATIENCE)


async def by_thread(work: Callable[[], None]) -> None:
    await joined(threading.Thread(target=work))


async def by_daemon(work: Callable[[], None]) -> None:
    await joined(threading.Thread(target=work, daemon=True))


async def by_timer(work: Callable[[], None]) -> None:
    await joined(threading.Timer(0.0, work))


async def joined(thread: threading.Thread) -> None:
    thread.start()
    await asyncio.to_thread(thread.join, PATIENCE)


WAYS: dict[str, Callable[[Callable[[], None]], Awaitable[Any]]] = {
    "hangup.to_thread": hangup.to_thread,
    "asyncio.to_thread": asyncio.to_thread,
    "run_in_executor": by_run_in_executor,
    "submit": by_submit,
    "map": by_map,
    "ThreadPool": by_thread_pool,
    "Thread": by_thread,
    "daemon Thread": by_daemon,
    "Timer": by_timer,
}


def test_c8_context_lost_in_executor() -> None:
    """The first call is cut at the deadline, the second refused, all is accounted."""

    @in_loop
    async def check() -> None:
        async with agent() as one:

            async def go(way: str) -> float:
                with pytest.raises(hangup.DeadlineExceeded):
                    async with hangup.run(budget=BUDGET, name=way) as run:
                        await WAYS[way](partial(one.two_calls, way))
                        hangup.check()
                return run.deadline.at

            deadlines = await asyncio.gather(*map(go, WAYS))
            await one.model.log.closed_count(len(WAYS))
            await eventually(lambda: one.ended == set(WAYS))
            for way, deadline in zip(WAYS, deadlines, strict=True):
                [call] = one.model.log.of(way)
                assert call.closed is not None
                assert call.closed - deadline < IN_TIME, way
                assert call.output_tokens > 0, way
                kinds = [type(error) for error in one.caught[way]]
                # On a thread of its own the run may be there yet to take the signal,
                # which nobody eats: then there is no second call.
                signalled = way == "hangup.to_thread" and kinds == [hangup.Stop]
                assert signalled or kinds == [hangup.DeadlineExceeded] * 2, way
                refused = one.telemetry.total(names.REFUSALS, run=way)
                assert signalled or refused >= 1, way
                is_of_its_run(one, way)
            assert one.telemetry.abandoned() == {"deadline": len(WAYS)}
            assert one.telemetry.total(names.METERED_TOKENS, in_run=False) == 0
            assert one.telemetry.total(names.UNSETTLED) == 0

    check()


def is_of_its_run(one: Agent, way: str) -> None:
    """Assert that what was spent is booked on the run, within a chunk."""
    booked = [one.telemetry.tokens(fate, run=way) for fate in ("sunk", "wasted")]
    [call] = one.model.log.of(way)
    # Estimated from the text: the chunk with the usage never came.
    assert sum(tokens for tokens, _ in booked) == pytest.approx(
        call.input_tokens, abs=2
    )
    assert sum(tokens for _, tokens in booked) == pytest.approx(
        call.output_tokens, abs=LONG.chunk_most + call.output_tokens * 0.25
    )
    assert one.telemetry.total(names.TOKENS, fate="delivered", run=way) == 0


def test_c8_without_any_help_the_calls_are_counted_as_of_no_run() -> None:
    """Nothing is refused there, and coverage says so."""

    @in_loop
    async def check() -> None:
        async with agent(SHORT) as one:
            threads.uninstall()
            with executor() as pool:
                loop = asyncio.get_running_loop()
                async with hangup.run(name="tool"):
                    await loop.run_in_executor(pool, one.two_calls, "x")
            assert not one.caught
            assert [call.output_tokens for call in one.model.log.calls] == [8, 8]
            telemetry = one.telemetry
            assert telemetry.total(names.METERED_TOKENS, in_run=False) == 2 * 28
            assert telemetry.total(names.METERED_TOKENS, in_run=True) == 0
            assert telemetry.total(names.TOKENS) == 0

    check()
