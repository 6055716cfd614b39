"""What of gRPC is done by hand, and instrumented besides, is done once."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

import grpc  # type: ignore[import-untyped]
import pytest
from support.core import in_loop
from support.rpc import channel, on, serving
from support.rpc_spending import Spending
from support.rpc_waiting import KINDS, Waiting, asked, asked_sync
from support.telemetry import instrumented
from support.waiting import eventually

import hangup
from hangup.clients.grpc import attach
from hangup.otel import names
from hangup.servers.grpc import AioInterceptor, Interceptor

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.timeout(60)

ORDERS = ["by hand first", "instrumented first"]
PATIENCE = 10.0


class Opened(NamedTuple):
    """Channels to one target, attached, and attached again."""

    aio: Any
    sync: Any


@contextlib.asynccontextmanager
async def attached(target: str) -> AsyncIterator[Opened]:
    async with channel(target) as aio:
        with grpc.insecure_channel(target) as sync:
            for opened in (aio, sync) * 2:
                attach(opened, target)
            yield Opened(aio, sync)


@pytest.mark.parametrize("order", ORDERS)
@in_loop
async def test_what_is_done_twice_is_one_run_and_one_count(order: str) -> None:
    """Four channels and two servers, each with two interceptors and a third of ours."""
    spending = Spending()
    async with contextlib.AsyncExitStack() as stack:
        if order == "instrumented first":
            telemetry = stack.enter_context(instrumented(mode="enforce"))
        loop, threads = await stack.enter_async_context(
            spending.serving(
                aio=tuple(AioInterceptor(budget=30) for _ in range(2)),
                sync=tuple(Interceptor(budget=30) for _ in range(2)),
            )
        )
        to_loop = await stack.enter_async_context(attached(loop))
        to_threads = await stack.enter_async_context(attached(threads))
        if order == "by hand first":
            telemetry = stack.enter_context(instrumented(mode="enforce"))
        spending.telemetry = telemetry

        def on_thread() -> None:
            for opened, kind in ((to_loop, "aio"), (to_threads, "sync")):
                assert on(opened.sync, f"{kind}_uu")(b"") == b"answer"
                assert list(on(opened.sync, f"{kind}_us")(b"")) == [b"answer"]

        async with hangup.run(budget=10, name="caller") as run:
            for opened, kind in ((to_loop, "aio"), (to_threads, "sync")):
                assert await asked(opened.aio, f"{kind}_uu") == b"answer"
                assert await asked(opened.aio, f"{kind}_us") == b"answer"
            await hangup.to_thread(on_thread)
        assert [one.id for one in spending.runs] == [run.id] * 8
        for metadata in spending.metadata:
            keys = [key for key, _ in metadata]
            assert keys.count("hangup") == keys.count("baggage") == 1
        # The callees are told of the end, and book it.
        await eventually(lambda: telemetry.tokens("delivered")[1] >= 40)
        assert telemetry.tokens("delivered") == (80, 40)
        assert telemetry.total(names.CALLS) == 8
        assert telemetry.total(names.RUNS) == 1


@pytest.mark.parametrize("order", ORDERS)
@in_loop
async def test_a_call_that_is_watched_twice_is_stopped_once(order: str) -> None:
    """Its error is one stop, not the consequence of another."""
    server = Waiting()
    errors: list[BaseException | None] = []

    def on_thread(opened: Any, kind: str) -> None:
        with pytest.raises(hangup.DeadlineExceeded), hangup.run(1.5, name="r"):
            try:
                asked_sync(opened, kind)
            except BaseException as error:
                errors.append(error)
                raise

    def on_another(opened: Any) -> None:
        """It is waited for where no run is, and hears of the stop as others do."""
        with pytest.raises(hangup.DeadlineExceeded), hangup.run(1.5, name="r") as run:
            call = on(opened, "wait_uu").future(b"")
            with ThreadPoolExecutor(1) as pool, hangup.detached():
                waiting = pool.submit(contextvars.Context().run, call.result)
            errors.append(waiting.exception())
            run.check()

    async def on_task(opened: Any, kind: str) -> None:
        with pytest.raises(hangup.DeadlineExceeded):
            async with hangup.run(1.5, name="r"):
                try:
                    await asked(opened, kind)
                except BaseException as error:
                    errors.append(error)
                    raise

    async with contextlib.AsyncExitStack() as stack:
        if order == "instrumented first":
            telemetry = stack.enter_context(instrumented())
        target = await stack.enter_async_context(serving(**server.methods))
        opened = await stack.enter_async_context(attached(target))
        if order == "by hand first":
            telemetry = stack.enter_context(instrumented())
        await asyncio.gather(
            *(on_task(opened.aio, kind) for kind in KINDS),
            *(asyncio.to_thread(on_thread, opened.sync, kind) for kind in KINDS),
            asyncio.to_thread(on_another, opened.sync),
        )
        await server.all_cut(9)
        assert telemetry.abandoned() == {"deadline": 9}
    assert [_stops(error) <= 1 for error in errors] == [True] * 9, errors


def _stops(error: BaseException | None) -> int:
    """How many errors of hangup a chain of errors has."""
    if error is None:
        return 0
    ours = isinstance(error, (hangup.Stop, hangup.RunAbandoned))
    return ours + _stops(error.__cause__)
