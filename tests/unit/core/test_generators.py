"""A run that an async generator holds across its yields is the generator's own."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import logging
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from opentelemetry import context as otel_context
from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.sdk.trace import TracerProvider
from support.core import in_loop, settle, spending

import hangup
from hangup.core import registry
from hangup.core.current import POSITION, position
from hangup.errors import DeadlineExceeded, MisuseError, RunAbandoned, RunCancelled
from hangup.otel.instrumentor import HangupInstrumentor
from hangup.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator

    from hangup.core.run import Run

    Stream = AsyncGenerator[int, None]


@pytest.fixture(params=[False, True], ids=["bare", "bridged"], autouse=True)
def bridged(request: pytest.FixtureRequest) -> Iterator[bool]:
    """Without OpenTelemetry, and with its context carrying the position too."""
    if not request.param:
        yield False
        return
    provider, instrumentor = TracerProvider(), HangupInstrumentor()
    instrumentor.instrument(
        tracer_provider=provider, meter_provider=NoOpMeterProvider()
    )
    yield True
    instrumentor.uninstrument()
    provider.shutdown()


class Source:
    """A generator that holds a run, and what its body saw.

    Attributes:
        runs: The runs that were opened.
        seen: The current run, before each value.
        closed: How often its transport was closed.
    """

    def __init__(self, clock: FakeClock | None = None, **options: Any) -> None:
        self.runs: list[Run] = []
        self.seen: list[Run | None] = []
        self.closed = 0
        self._options = {"clock": clock, **options}

    async def stream(self, values: int = 1_000) -> Stream:
        async with hangup.run(name="stream", **self._options) as run:
            self.runs.append(run)
            try:
                for value in range(values):
                    hangup.check()
                    self.seen.append(hangup.current_run())
                    await asyncio.sleep(0)
                    yield value
            finally:
                self.closed += 1


# What its consumer sees


@in_loop
async def test_its_consumer_is_outside_between_two_values() -> None:
    source = Source()
    async for value in source.stream(3):
        assert hangup.current_run() is None
        assert position() is None
        with hangup.run() as own:
            assert own.parent is None
            assert hangup.current_run() is own
        assert len(source.seen) == value + 1
    assert source.seen == source.runs * 3
    assert source.runs[0].delivered_at is not None
    assert POSITION.get() is None


@in_loop
async def test_its_consumer_stays_in_its_own_run() -> None:
    source = Source()
    async with hangup.run(name="outer") as outer:
        async for _ in source.stream(2):
            assert hangup.current_run() is outer
        assert hangup.current_run() is outer
    assert source.runs[0].parent is outer


@in_loop
async def test_what_it_starts_inside_stays_inside() -> None:
    async def work() -> Run | None:
        for _ in range(5):
            await asyncio.sleep(0)
        return hangup.current_run()

    async def stream() -> AsyncGenerator[asyncio.Task[Run | None], None]:
        async with hangup.run() as run:
            runs.append(run)
            yield asyncio.create_task(work())

    runs: list[Run] = []
    async for task in stream():
        assert await task is runs[0]
        assert hangup.current_run() is None


@in_loop
async def test_two_that_take_turns_do_not_see_each_other() -> None:
    one, two = Source(), Source()
    first, second = one.stream(), two.stream()
    for _ in range(3):
        await anext(first)
        await anext(second)
    await first.aclose()
    await anext(second)
    await second.aclose()
    assert one.seen == one.runs * 3
    assert two.seen == two.runs * 4
    assert two.runs[0].parent is None
    assert position() is None


@in_loop
async def test_one_inside_another_is_its_child() -> None:
    inner = Source()

    async def outer() -> Stream:
        async with hangup.run() as run:
            runs.append(run)
            async for value in inner.stream(2):
                assert hangup.current_run() is run
                yield value

    runs: list[Run] = []
    assert [value async for value in outer()] == [0, 1]
    assert inner.runs[0].parent is runs[0]


@in_loop
async def test_the_block_of_a_context_manager_is_inside() -> None:
    @contextlib.asynccontextmanager
    async def manager() -> AsyncGenerator[Run, None]:
        async with hangup.run() as run:
            yield run

    async with manager() as run:
        assert hangup.current_run() is run
        async with contextlib.AsyncExitStack() as stack:
            inner = await stack.enter_async_context(manager())
            assert hangup.current_run() is inner
            assert inner.parent is run
    assert hangup.current_run() is None


@in_loop
async def test_a_generator_that_holds_a_context_manager_holds_its_run() -> None:
    @contextlib.asynccontextmanager
    async def manager() -> AsyncGenerator[Run, None]:
        async with hangup.run() as run:
            yield run

    async def stream() -> AsyncGenerator[Run, None]:
        async with manager() as run:
            assert hangup.current_run() is run
            yield run

    async for run in stream():
        assert hangup.current_run() is None
        assert run.cause is None


@in_loop
async def test_a_run_opened_and_left_between_two_yields_is_an_ordinary_one() -> None:
    async def stream() -> AsyncGenerator[Run, None]:
        async with hangup.run() as run:
            assert hangup.current_run() is run
        yield run

    async for run in stream():
        assert run.delivered_at is not None


@in_loop
async def test_sync_scopes_drains_cleanups_and_detached_blocks_too() -> None:
    async def stream() -> AsyncGenerator[int, None]:
        with hangup.run() as run:
            with hangup.drain():
                assert hangup.current_run() is run
                yield 1
            async with hangup.drain():
                yield 2
            with hangup.cleanup():
                assert hangup.current_run() is run
                yield 3
            with hangup.detached():
                assert hangup.current_run() is None
                yield 4
            assert hangup.current_run() is run

    async with hangup.run() as outer:
        async for _ in stream():
            assert hangup.current_run() is outer
            here = position()
            assert here is not None
            assert (here.shield, here.drain) == (None, None)


# Its stop


@in_loop
async def test_the_stop_never_hits_its_consumer() -> None:
    clock = FakeClock()
    source = Source(clock, budget=10.0)

    async def consume() -> str:
        async for _ in source.stream():
            clock_passes.set()
            await goes_on.wait()
            hangup.check()  # the consumer's own business
        return "never"

    clock_passes, goes_on = asyncio.Event(), asyncio.Event()
    consumer = asyncio.create_task(consume())
    await clock_passes.wait()
    clock.advance(10.0)
    await settle()
    assert consumer.cancelling() == 0
    goes_on.set()
    # The generator goes on, is stopped there, and its run's error comes out of it.
    with pytest.raises(DeadlineExceeded):
        await consumer
    assert consumer.cancelling() == 0
    assert source.closed == 1


@in_loop
async def test_the_stop_comes_where_the_generator_waits() -> None:
    async def stream() -> Stream:
        async with hangup.run() as run:
            runs.append(run)
            yield 1
            await asyncio.Event().wait()

    async def consume() -> None:
        async for _ in stream():
            pass

    runs: list[Run] = []
    consumer = asyncio.create_task(consume())
    await settle()
    runs[0].cancel("killed")
    await settle()
    assert consumer.done()  # at once
    with pytest.raises(RunCancelled):
        await consumer
    assert consumer.cancelling() == 0


@in_loop
async def test_a_stop_that_came_meanwhile_waits_for_the_generator_to_go_on() -> None:
    async def stream() -> Stream:
        async with hangup.run() as run:
            runs.append(run)
            yield 1
            await asyncio.Event().wait()  # no spending call that could be refused

    runs: list[Run] = []
    values = stream()
    await anext(values)
    runs[0].cancel("killed")
    await asyncio.sleep(0.03)  # it looks again and again
    with pytest.raises(RunAbandoned):
        await anext(values)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


@in_loop
async def test_a_stop_that_waits_is_forgotten_where_the_generator_is_closed() -> None:
    source = Source()
    values = source.stream()
    await anext(values)
    source.runs[0].cancel("killed")
    await settle()  # it has looked once, and would look again
    await values.aclose()
    await asyncio.sleep(0.03)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


@in_loop
async def test_nor_does_it_hit_a_task_group_of_its_consumer() -> None:
    source, done = Source(), asyncio.Event()

    async def work() -> None:
        source.runs[0].cancel("killed")
        await settle()
        done.set()

    async with contextlib.aclosing(source.stream()) as values:
        async for _ in values:
            async with anyio.create_task_group() as group:
                group.start_soon(work)
            break
    assert done.is_set()


@in_loop
async def test_once_it_was_reported_the_consumer_is_left_alone_for_good() -> None:
    clock = FakeClock()
    source = Source(clock)
    values = source.stream()
    await anext(values)
    source.runs[0].cancel("killed")
    await settle()
    asyncio.get_running_loop().call_soon(clock.advance, 60.0)
    await asyncio.sleep(0.03)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    with pytest.raises(RunAbandoned):
        await anext(values)  # its next call is refused all the same


@in_loop
async def test_a_spending_call_of_its_consumer_is_not_its_own() -> None:
    source = Source()
    async with hangup.run(name="outer") as outer:
        values = source.stream()
        await anext(values)
        with spending(outer):
            source.runs[0].cancel("killed")
            await settle()
            hangup.check()
        with pytest.raises(RunAbandoned):
            await anext(values)
    assert outer.delivered_at is not None


@in_loop
async def test_a_cleanup_that_takes_too_long_never_hits_its_consumer() -> None:
    async def stream() -> Stream:
        async with hangup.cleanup(budget=1.0, clock=clock):
            yield 1
            await asyncio.sleep(0)
            yield 2

    clock = FakeClock()
    task = asyncio.current_task()
    assert task is not None
    async for _ in stream():
        asyncio.get_running_loop().call_soon(clock.advance, 1.0)
        await settle()
        assert task.cancelling() == 0


# How it may end


def left_nothing(source: Source, times: int = 1) -> None:
    assert source.closed == times
    assert all(run.closed_at is not None for run in source.runs)
    assert registry.live_runs() == ()
    assert position() is None


@in_loop
async def test_closed_by_its_consumer() -> None:
    source = Source()
    async with contextlib.aclosing(source.stream()) as values:
        await anext(values)
    left_nothing(source)
    assert source.runs[0].cause == "failed"
    assert otel_context.get_current() == {}


@in_loop
async def test_closed_from_another_task() -> None:
    source = Source()
    values = source.stream()

    async def consume() -> None:
        await anext(values)
        began.set()
        await closed.wait()
        left_nothing(source)
        hangup.check()
        with hangup.run() as fresh:
            assert fresh.parent is None

    async def close() -> None:
        async with hangup.run() as other:
            await values.aclose()
            assert hangup.current_run() is other
            hangup.check()

    began, closed = asyncio.Event(), asyncio.Event()
    consumer = asyncio.create_task(consume())
    await began.wait()
    await asyncio.create_task(close())
    closed.set()
    await consumer
    assert consumer.cancelling() == 0


@in_loop
async def test_dropped_half_way_and_garbage_collected(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    source = Source()
    async for _ in source.stream():
        break
    gc.collect()
    await settle()
    left_nothing(source)
    hangup.check()
    assert caplog.records == []


def test_closed_as_its_loop_shuts_down(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    source = Source()
    kept: list[Stream] = []

    async def main() -> None:
        kept.append(source.stream())
        await anext(kept[0])

    nowhere = contextvars.Context()
    nowhere.run(asyncio.run, main())
    nowhere.run(left_nothing, source)
    assert caplog.records == []


@in_loop
async def test_many_that_are_dropped_do_not_pile_up() -> None:
    source = Source()
    for _ in range(50):
        async for _ in source.stream():
            break
        await settle()
    left_nothing(source, 50)
    depth, found = 0, POSITION.get()
    while found is not None:
        depth, found = depth + 1, found.before
    assert depth <= 2


@in_loop
async def test_a_drain_block_that_is_closed_elsewhere_is_no_misuse() -> None:
    async def stream() -> Stream:
        async with hangup.drain():
            yield 1

    async with hangup.run() as run:
        values = stream()
        await anext(values)
        await asyncio.create_task(values.aclose())
        assert run.work.tree.drains == set()


@in_loop
async def test_a_context_manager_that_is_left_elsewhere_still_is_misuse() -> None:
    @contextlib.asynccontextmanager
    async def manager() -> AsyncGenerator[Run, None]:
        async with hangup.run() as run:
            yield run

    held = manager()
    await held.__aenter__()
    with pytest.raises(MisuseError, match="left in"):
        await asyncio.create_task(held.__aexit__(None, None, None))
