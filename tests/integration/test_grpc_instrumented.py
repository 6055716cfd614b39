"""gRPC as instrumentations make it: zero-code, beside tracing, in either order."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any
from unittest import mock

import grpc  # type: ignore[import-untyped]
import pytest
from opentelemetry import trace
from opentelemetry.instrumentation.grpc import (
    GrpcAioInstrumentorClient,
    GrpcAioInstrumentorServer,
    GrpcInstrumentorClient,
    GrpcInstrumentorServer,
)
from opentelemetry.sdk.trace import TracerProvider
from support.core import in_loop
from support.rpc import channel, on, path, serving
from support.rpc_spending import Spending
from support.rpc_waiting import KINDS, Waiting, asked, asked_sync
from support.telemetry import Telemetry, instrumented
from support.tunnel import tunnel

import hangup
from hangup.otel import names, wire

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.timeout(60)

ORDERS = ["without", "tracing first", "hangup first"]
OUTSIDE = "outside.example:50051"
TIMES = 100


@contextlib.contextmanager
def tracing() -> Iterator[None]:
    """OpenTelemetry's own instrumentation of gRPC."""
    kinds: list[Any] = [
        GrpcAioInstrumentorClient,
        GrpcAioInstrumentorServer,
        GrpcInstrumentorClient,
        GrpcInstrumentorServer,
    ]
    instrumentors = [kind() for kind in kinds]
    provider = TracerProvider(shutdown_on_exit=False)
    for one in instrumentors:
        one.instrument(tracer_provider=provider)
    try:
        # That of grpc's clients takes the process-wide provider whatever it is given.
        with mock.patch.object(trace, "get_tracer_provider", return_value=provider):
            yield
    finally:
        for one in reversed(instrumentors):
            one.uninstrument()


@contextlib.contextmanager
def both(order: str, **settings: Any) -> Iterator[Telemetry]:
    """hangup, with tracing in this order."""
    with contextlib.ExitStack() as stack:
        if order == "tracing first":
            stack.enter_context(tracing())
        telemetry = stack.enter_context(instrumented(**settings))
        if order == "hangup first":
            stack.enter_context(tracing())
        yield telemetry


def calls_sync(target: str, *methods: str, times: int = 1, **options: Any) -> None:
    with grpc.insecure_channel(target, options.pop("options", ())) as opened:
        for method in methods * times:
            call = on(opened, method)(b"", **options)
            assert method[-1] != "s" or list(call)


async def calls(target: str, *methods: str, times: int = 1, **options: Any) -> None:
    async with channel(target, options=options.pop("options", ())) as opened:
        for method in methods * times:
            call = on(opened, method)(b"", **options)
            if method[-1] == "s":
                assert [piece async for piece in call]
            else:
                await call


@pytest.mark.parametrize("order", ORDERS)
@in_loop
async def test_zero_code_serves_and_carries_whichever_came_first(order: str) -> None:
    """Both servers join the run of both clients, whose entries come once."""
    with both(order, mode="enforce") as telemetry:
        spending = Spending(telemetry)
        async with spending.serving() as (loop, threads):
            async with hangup.run(budget=30, name="caller") as run:
                await calls(loop, "aio_uu", "aio_us")
                await calls(threads, "sync_uu", "sync_us")
                work = hangup.to_thread(calls_sync, loop, "aio_uu", "aio_us")
                await work
                await hangup.to_thread(calls_sync, threads, "sync_uu", "sync_us")
            assert len(spending.runs) == 8
            for served in spending.runs:
                assert (served.id, served.joined) == (run.id, True)
                assert served.name.startswith("/test.Agent/")
                assert served.deadline.at == pytest.approx(run.deadline.at, abs=0.2)
            for metadata in spending.metadata:
                keys = [key for key, _ in metadata]
                assert keys.count("hangup") == keys.count("baggage") == 1
                [entries] = [value for key, value in metadata if key == "baggage"]
                assert entries.count("hangup.token") == 1
                assert ("traceparent" in keys) is (order != "without")
            assert telemetry.total(names.RUNS, run="caller") == 1
            assert telemetry.total(names.RUNS) == 1


@pytest.mark.parametrize("order", ORDERS)
@in_loop
async def test_a_stop_comes_through_tracing_as_a_stop(order: str) -> None:
    """No retry of RPC errors eats it, on tasks and threads, whatever the kind."""
    server = Waiting()
    attempts: list[str] = []

    async def retrying(opened: Any, kind: str) -> None:
        while True:
            attempts.append(kind)
            with contextlib.suppress(grpc.RpcError):
                await asked(opened, kind)

    def on_thread(target: str, kind: str) -> None:
        with (
            grpc.insecure_channel(target) as opened,
            pytest.raises(hangup.DeadlineExceeded),
            hangup.run(budget=1.5, name="r"),
        ):
            while True:
                attempts.append(kind)
                with contextlib.suppress(grpc.RpcError):
                    asked_sync(opened, kind)

    async def on_tasks(target: str) -> None:
        async with channel(target) as opened:
            with pytest.raises(hangup.RunAbandoned):
                async with hangup.run(name="r") as run, asyncio.TaskGroup() as group:
                    for kind in KINDS:
                        group.create_task(retrying(opened, kind))
                    await server.count(8)
                    run.cancel("killed")

    with both(order):
        async with serving(**server.methods) as target:
            await asyncio.wait_for(
                asyncio.gather(
                    *(asyncio.to_thread(on_thread, target, kind) for kind in KINDS),
                    on_tasks(target),
                ),
                5,
            )
            await server.all_cut(8)
    assert sorted(attempts) == sorted(KINDS * 2)


@in_loop
async def test_zero_code_observes_until_told_otherwise() -> None:
    """An instrumentation that cuts calls on its first day would be an outage."""
    with instrumented(budget=0.1) as telemetry:
        spending = Spending(telemetry)

        async def slow_uu(request: bytes, context: Any) -> bytes:
            spending.spend(context)
            await asyncio.sleep(0.3)
            return b"answer"

        async with serving(slow_uu=slow_uu) as target:
            await calls(target, "slow_uu")
        assert [run.mode for run in spending.runs] == ["observe"]
        assert telemetry.total(names.RUNS, outcome="late", run=path("slow_uu")) == 1


@in_loop
async def test_servers_made_before_the_end_of_hangup_do_nothing_after_it() -> None:
    with instrumented(mode="enforce") as telemetry:
        spending = Spending(telemetry)
        serve = contextlib.AsyncExitStack()
        loop, threads = await serve.enter_async_context(spending.serving())
    async with serve:
        await calls(loop, "aio_uu", "aio_us")
        await calls(threads, "sync_uu", "sync_us")
    assert spending.runs == [None] * 4


@pytest.mark.parametrize("order", ORDERS)
@in_loop
async def test_c7_baggage_leaks_to_provider(order: str) -> None:
    """An outside host gets none of our keys in 100 of 100 calls, an inside one all."""
    forwarded = (("hangup", 't="' + "ab" * 16 + '"'), ("baggage", "hangup.left=5,u=1"))
    with both(order) as telemetry:
        spending = Spending(telemetry)
        async with (
            spending.serving() as (loop, threads),
            tunnel(loop) as to_loop,
            tunnel(threads) as to_threads,
            hangup.run(budget=30, name="caller"),
        ):
            ways: dict[str, Any] = {"options": to_loop, "metadata": forwarded}
            await calls(OUTSIDE, "aio_uu", "aio_us", times=TIMES // 4, **ways)
            ways["options"] = to_threads
            await hangup.to_thread(
                calls_sync, OUTSIDE, "sync_uu", "sync_us", times=TIMES // 4, **ways
            )
            assert len(spending.metadata) == TIMES
            for metadata in spending.metadata:
                assert "hangup" not in " ".join(map(str, metadata))
                assert order == "without" or "traceparent" in dict(metadata)
                # Where tracing injects, a baggage that was written by hand is gone.
                assert order != "without" or ("baggage", "u=1") in metadata
            await calls(loop, "aio_uu")
            assert wire.HEADER in dict(spending.metadata[-1])
