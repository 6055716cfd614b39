"""Programs that wait on every path of ours: what comes into them is for tests."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from support.telemetry import chat

import hangup

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine

    from opentelemetry.trace import Tracer
    from support.injection import Injector

    from hangup.core.run import Run

    Program = Callable[["Bench"], Coroutine[Any, Any, str]]

BUDGET = 100.0


class Bench:
    """What a program has at hand.

    Attributes:
        loop: Where it runs; time passes on it when nothing else is left to do.
        run: The run, once it is open.
        request: The task that it serves.
        done: What was done to its end, in order.
        late: The calls that started though the run was abandoned.
        mark: How much was done when something came.
        in_time: Whether that was in time to matter.
    """

    request: asyncio.Task[str]

    def __init__(self, loop: Injector, tracer: Tracer) -> None:
        self.loop = loop
        self.tracer = tracer
        self.run: Run | None = None
        self.done: list[str] = []
        self.late: list[str] = []
        self.mark = 0
        self.in_time = False

    @contextlib.asynccontextmanager
    async def opened(self, **options: Any) -> AsyncIterator[Run]:
        scope = hangup.run(BUDGET, name="root", clock=self.loop.clock, **options)
        async with scope as run:
            self.run = run
            yield run

    async def wait(self, seconds: float = 1.0, what: str = "wait") -> str:
        """Wait for something that is no spending call."""
        came = self.loop.create_future()
        timer = self.loop.call_later(seconds, came.set_result, None)
        try:
            await came
        finally:
            timer.cancel()
        self.done.append(what)
        return what

    async def call(self, seconds: float = 1.0, what: str = "call") -> str:
        """Make a model call."""
        with chat(self.tracer):
            if self.run is not None and self.run.token.abandonment is not None:
                self.late.append(what)
            return await self.wait(seconds, what)


# The programs


async def scope(bench: Bench) -> str:
    async with bench.opened():
        await bench.call()
        await bench.wait()
        return await bench.call()


async def nested_scopes(bench: Bench) -> str:
    async with bench.opened():
        await bench.call()
        async with hangup.run(50, name="child"):
            await bench.call()
            async with hangup.run(30, name="grandchild"):
                await bench.call()
            await bench.wait()
        return await bench.call()


async def sync_scopes(bench: Bench) -> str:
    with hangup.run(BUDGET, name="root", clock=bench.loop.clock) as run:
        bench.run = run
        await bench.call()
        with hangup.run(50, name="child"):
            await bench.call()
        return await bench.call()


async def decorated(bench: Bench) -> str:
    @hangup.run(50, name="step")
    async def step(what: str) -> str:
        await bench.wait()
        return await bench.call(what=what)

    async with bench.opened():
        await step("first")
        return await step("second")


async def gathered(bench: Bench) -> str:
    async def child() -> str:
        async with hangup.run(50, name="child"):
            return "".join(await hangup.gather(bench.call(2), bench.wait(1)))

    async with bench.opened():
        aside = asyncio.create_task(bench.call(3, "aside"))
        found = await hangup.gather(bench.call(1), child(), bench.call(2), limit=2)
        await aside
        return "".join(found)


async def left_over(bench: Bench) -> str:
    async with bench.opened():
        aside = asyncio.create_task(bench.call(5, "aside"))
        await bench.call()
        del aside
    return "left"


async def in_groups(bench: Bench) -> str:
    async with bench.opened():
        async with asyncio.TaskGroup() as group:
            one = group.create_task(bench.call())
            group.create_task(bench.wait(2))
        async with asyncio.timeout(5):
            await bench.call()
        return await asyncio.wait_for(bench.call(), 5) + one.result()


async def cleaned_up(bench: Bench) -> str:
    async with bench.opened():
        try:
            return await bench.call()
        finally:
            async with hangup.cleanup(budget=5):
                await bench.wait(1, "closed")
            with hangup.cleanup(budget=5):
                await bench.wait(1, "closed")


async def cleaned_up_too_slowly(bench: Bench) -> str:
    async with bench.opened():
        with contextlib.suppress(TimeoutError):
            async with hangup.cleanup(budget=2):
                await bench.wait(1, "closed")
                await bench.wait(10)
        return await bench.call()


async def irreversibly(bench: Bench) -> str:
    async def ask(what: str) -> bool:
        await bench.wait(1, "asked")
        return True

    async def charge(what: str) -> str:
        bench.done.append("begun")
        await bench.wait(1, "half")
        await bench.wait(1, "charged")
        return what

    async with bench.opened():
        await bench.call()
        await hangup.irreversible(charge, "card", approve=ask)
        return await bench.call()


async def on_threads(bench: Bench) -> str:
    def work() -> str:
        hangup.check()
        bench.done.append("worked")
        return "worked"

    async with bench.opened():
        await bench.wait()
        await hangup.to_thread(work)
        first, _ = await hangup.gather(hangup.to_thread(work), bench.call())
        return first


async def drained(bench: Bench) -> str:
    async with bench.opened():
        async with hangup.drain(budget=5):
            await bench.call()
            await bench.wait()
        return await bench.call()


async def drained_too_slowly(bench: Bench) -> str:
    async with bench.opened():
        async with hangup.drain(budget=0.5):
            await hangup.gather(bench.call(2), bench.call(3))
        return await bench.wait()


async def detached(bench: Bench) -> str:
    async with bench.opened():
        with hangup.detached():
            aside = asyncio.create_task(bench.wait(3, "job"))
            await bench.wait()
        await bench.call()
    await aside
    return "left"


async def away(bench: Bench) -> str:
    async with bench.opened(on_disconnect="grace", grace=3.0) as run:
        run.leave()
        await bench.call()
        run.reattach()
        await bench.wait(4)
        run.leave()
        await bench.wait()
        run.reattach()
        return await bench.call()


async def away_for_ever(bench: Bench) -> str:
    async with bench.opened(on_disconnect="grace", grace=3.0) as run:
        run.leave()
        return await bench.call()


async def streamed(bench: Bench) -> str:
    async def pieces() -> AsyncGenerator[str, None]:
        with chat(bench.tracer):
            for number in range(3):
                yield await bench.wait(1, str(number))

    async with bench.opened(), contextlib.aclosing(pieces()) as stream:
        return "".join([piece async for piece in stream])


PROGRAMS: list[Program] = [
    scope,
    nested_scopes,
    sync_scopes,
    decorated,
    gathered,
    left_over,
    in_groups,
    cleaned_up,
    cleaned_up_too_slowly,
    irreversibly,
    on_threads,
    drained,
    drained_too_slowly,
    detached,
    away,
    away_for_ever,
    streamed,
]
