"""grpc.aio and grpc clients: what leaves carries the run, and ends with it."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING, Any

import grpc  # type: ignore[import-untyped]
import pytest
from support.core import for_ever, in_loop
from support.rig import IN_TIME
from support.rpc import channel, on, serving, status
from support.rpc_waiting import KINDS, Waiting, asked, asked_sync
from support.telemetry import chat, instrumented

import hangup
import hangup.errors
from hangup.clients.grpc import attach
from hangup.otel import wire

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.timeout(60)


@in_loop
async def test_a_stop_cancels_what_is_in_flight() -> None:
    """All four kinds, on tasks of which no span tells; each ends with the stop."""
    server = Waiting()
    with instrumented():
        async with serving(**server.methods) as target, channel(target) as opened:
            with pytest.raises(hangup.RunCancelled):
                async with hangup.run(name="r") as run:
                    tasks = [asyncio.create_task(asked(opened, one)) for one in KINDS]
                    await server.count(4)
                    killed = time.monotonic()
                    run.cancel("killed")
                    await for_ever()
            await server.all_cut(4)
            assert max(server.cancelled) - killed < IN_TIME
            for ended in await asyncio.gather(*tasks, return_exceptions=True):
                assert isinstance(ended, (hangup.Stop, hangup.RunAbandoned))


@in_loop
async def test_the_deadline_of_the_run_is_the_timeout_where_it_is_shorter() -> None:
    """And what comes of it is the stop, which no retry of RPC errors eats."""
    server = Waiting()
    attempts: list[str] = []

    async def retrying(opened: Any, kind: str) -> None:
        while True:
            attempts.append(kind)
            try:
                await asked(opened, kind)
            except grpc.RpcError:
                continue

    with instrumented():
        async with serving(**server.methods) as target, channel(target) as opened:
            begun = time.monotonic()
            with pytest.raises(hangup.DeadlineExceeded):
                async with hangup.run(1.0, name="r"), asyncio.TaskGroup() as group:
                    for kind in KINDS:
                        group.create_task(retrying(opened, kind))
            assert time.monotonic() - begun < 1.0 + IN_TIME
            assert sorted(attempts) == sorted(KINDS)
            # gRPC rounds it up on its way.
            assert all(left is not None and left < 1.1 for left in server.left)
            await server.all_cut(4)


@in_loop
async def test_a_shorter_timeout_of_the_caller_stays_and_is_an_ordinary_error() -> None:
    server = Waiting()
    with instrumented():
        async with serving(**server.methods) as target, channel(target) as opened:
            async with hangup.run(budget=30, name="r"):
                for kind in KINDS:
                    with pytest.raises(grpc.aio.AioRpcError) as caught:
                        await asked(opened, kind, timeout=0.2)
                    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            with pytest.raises(grpc.aio.AioRpcError):
                await asked(opened, "wait_uu", timeout=0.2)
        assert all(left is not None and left <= 0.21 for left in server.left)


@in_loop
async def test_metadata_carries_the_run_once() -> None:
    """Header and baggage, beside what the caller gave; none of it outside a run."""
    server = Waiting()
    server.may_answer.set()
    given = (("tenant", "acme"), ("baggage", "user=1"), ("hangup", "forged"))
    with instrumented():
        async with serving(**server.methods) as target, channel(target) as opened:
            async with hangup.run(budget=10, name="r") as run:
                await asked(opened, "wait_uu", metadata=given)
            await asked(opened, "wait_uu", metadata=given)
    inside, outside = server.metadata
    [header] = [value for key, value in inside if key == "hangup"]
    found = wire.decode_header(header)
    assert found is not None
    assert found.token == run.id
    assert found.left is not None
    assert 9 < found.left <= 10
    [baggage] = [value for key, value in inside if key == "baggage"]
    assert f"hangup.token={run.id}" in baggage
    assert baggage.endswith(",user=1")
    assert ("tenant", "acme") in inside
    assert [pair for pair in outside if pair[0] != "user-agent"] == [*given[:2]]


@pytest.mark.parametrize("kind", KINDS)
@in_loop
async def test_on_a_thread_a_stop_cuts_what_blocks(kind: str) -> None:
    """A blocking call ends when its run is killed, with the stop."""
    server = Waiting()
    ended: list[float] = []
    runs: list[Any] = []

    def work(target: str) -> None:
        with grpc.insecure_channel(target) as opened, hangup.run(name="r") as run:
            runs.append(run)
            while True:
                try:
                    asked_sync(opened, kind)
                except grpc.RpcError:  # a retry that must not eat the stop
                    continue
                finally:
                    ended.append(time.monotonic())

    with instrumented():
        async with serving(**server.methods) as target:
            working = asyncio.create_task(asyncio.to_thread(work, target))
            await server.count(1)
            killed = time.monotonic()
            runs[0].cancel("killed")
            with pytest.raises(hangup.RunCancelled):
                await asyncio.wait_for(working, 5)
            assert [at - killed < IN_TIME for at in ended] == [True]
            await server.all_cut(1)


@in_loop
async def test_on_a_thread_the_deadline_of_the_run_is_the_timeout() -> None:
    server = Waiting()
    attempts: list[str] = []

    def work(target: str, kind: str) -> float:
        begun = time.monotonic()
        with (
            grpc.insecure_channel(target) as opened,
            pytest.raises(hangup.DeadlineExceeded),
            hangup.run(budget=1.0, name="r"),
        ):
            while True:
                attempts.append(kind)
                try:
                    asked_sync(opened, kind)
                except grpc.RpcError:
                    continue
        return time.monotonic() - begun

    with instrumented():
        async with serving(**server.methods) as target:
            took = await asyncio.gather(
                *(asyncio.to_thread(work, target, kind) for kind in KINDS)
            )
            assert all(1.0 <= seconds < 1.0 + IN_TIME for seconds in took)
            assert sorted(attempts) == sorted(KINDS)
            # gRPC rounds it up on its way.
            assert all(left is not None and left < 1.1 for left in server.left)


@in_loop
async def test_on_a_thread_a_call_looks_as_it_did() -> None:
    """Answers, calls, and errors are of the types and the values of gRPC's own."""
    server = Waiting()
    server.may_answer.set()

    def work(target: str) -> list[Any]:
        found: list[Any] = []
        with grpc.insecure_channel(target) as opened:
            asking = on(opened, "wait_uu")
            found.append(asking(b"", metadata=(("a", "b"),)))
            answer, call = asking.with_call(b"")
            found += [answer, call.code(), type(call)]
            found.append(asking.future(b"").result())
            with pytest.raises(grpc.RpcError) as caught:
                on(opened, "none_uu")(b"")
            found += [type(caught.value), caught.value.code()]
        return found

    def within(mode: str) -> list[Any]:
        with hangup.run(budget=30, name="r", mode=mode):
            return work(target)

    with instrumented():
        async with serving(**server.methods) as target:
            bare = await asyncio.to_thread(work, target)
            for mode in ("observe", "refuse", "enforce"):
                assert await asyncio.to_thread(within, mode) == bare


@in_loop
async def test_what_is_irreversible_is_neither_cut_nor_hurried() -> None:
    """Nor is a clean-up, nor a call of a run that is only observed."""
    server = Waiting()

    async def charge(opened: Any) -> bytes:
        return await asked(opened, "wait_uu")

    async def run_of(opened: Any, work: Callable[[Any], Any], **options: Any) -> Any:
        try:
            async with hangup.run(budget=0.5, name="r", **options):
                return await work(opened)
        except hangup.DeadlineExceeded:
            return None

    async def charged(opened: Any) -> bytes:
        done: bytes = await hangup.irreversible(charge, opened)
        return done

    async def cleaned(opened: Any) -> bytes:
        async with hangup.cleanup(budget=20):
            return await charge(opened)

    with instrumented():
        async with serving(**server.methods) as target, channel(target) as opened:
            tasks = [
                asyncio.create_task(run_of(opened, charged)),
                asyncio.create_task(run_of(opened, cleaned)),
                asyncio.create_task(run_of(opened, charge, mode="observe")),
            ]
            await server.count(3)
            await asyncio.sleep(0.7)
            server.may_answer.set()
            assert await tasks[2] == b"answer"
            await asyncio.gather(*tasks)
            assert server.cancelled == []
            assert server.left == [None, None, None]


def test_uninstrumenting_leaves_grpc_as_it_was() -> None:

    before = _all()
    with instrumented():
        assert all(one is not other for one, other in zip(_all(), before, strict=True))
    assert _all() == before


def _all() -> list[Any]:
    from hangup.clients import grpc as adapter  # noqa: PLC0415

    return list(_named(adapter._mending._wanted))


def _named(wanted: Any) -> Iterator[Any]:
    import importlib  # noqa: PLC0415

    for module, cls, method, _ in wanted:
        owner = getattr(importlib.import_module(module), cls)
        yield getattr(owner, method)


@in_loop
async def test_a_call_of_another_thread_does_not_hold_the_loop() -> None:
    """The stop of a run is heard of on any thread, and cancels on the loop's."""
    server = Waiting()
    with instrumented():
        async with serving(**server.methods) as target, channel(target) as opened:
            with pytest.raises(hangup.RunCancelled):
                async with hangup.run(name="r") as run:
                    stopper = threading.Thread(target=run.cancel, args=("killed",))
                    call = asyncio.create_task(asked(opened, "wait_us"))
                    await server.count(1)
                    stopper.start()
                    await call
            stopper.join()
            await server.all_cut(1)


@in_loop
async def test_f1_cancels_are_sent_and_the_channel_lives_on() -> None:
    """50 runs are killed: no handler is left, and the 51st call is answered."""
    server = Waiting()

    async def one(opened: Any) -> None:
        with pytest.raises(hangup.RunCancelled):
            async with hangup.run(name="r") as run:
                runs.append(run)
                await asked(opened, KINDS[len(runs) % 4])

    runs: list[Any] = []
    with instrumented():
        async with serving(**server.methods) as target, channel(target) as opened:
            tasks = [asyncio.create_task(one(opened)) for _ in range(50)]
            await server.count(50)
            for run in runs:
                run.cancel("killed")
            await asyncio.gather(*tasks)
            await server.all_cut(50)
            server.may_answer.set()
            async with hangup.run(name="r"):
                assert await asked(opened, "wait_uu") == b"answer"


@in_loop
async def test_a_channel_can_be_attached_by_hand() -> None:
    """Without instrumentation, one channel does all that instrumenting does for all."""
    server = Waiting()

    def on_thread(target: str) -> None:
        with (
            grpc.insecure_channel(target) as opened,
            pytest.raises(hangup.DeadlineExceeded),
            hangup.run(budget=1.0, name="r"),
        ):
            asked_sync(attach(grpc.intercept_channel(opened)), "wait_uu")

    async with serving(**server.methods) as target, channel(target) as opened:
        with pytest.raises(hangup.DeadlineExceeded):
            async with hangup.run(budget=1.0, name="r") as run:
                await asked(attach(opened, target), "wait_us")
        await asyncio.to_thread(on_thread, target)
        async with channel(target) as other, hangup.run(budget=1.0, name="r"):
            server.may_answer.set()
            await asked(other, "wait_uu")
    attached, _, bare = server.metadata
    assert run.id in dict(attached)["hangup"]
    assert [key for key, _ in bare] == ["user-agent"]
    assert server.left[2] is None
    with pytest.raises(hangup.errors.ArgumentError):
        attach("localhost:50051")


@in_loop
async def test_what_is_sent_after_the_stop_says_so_and_is_not_cut() -> None:
    """A clean-up is served; what would spend is refused there, for nobody waits."""
    server = Waiting()

    async def spend_uu(request: bytes, context: Any) -> bytes:
        with chat(tracer):
            return b"spent"

    with instrumented(mode="enforce") as telemetry:
        tracer = telemetry.tracer_provider.get_tracer("test")
        server.may_answer.set()
        methods = {**server.methods, "spend_uu": spend_uu}
        async with serving(**methods) as target, channel(target) as opened:
            with pytest.raises(hangup.RunCancelled):
                async with hangup.run(budget=30, name="r") as run:
                    run.cancel("killed")
                    try:
                        await asyncio.sleep(5)
                    finally:
                        assert await asked(opened, "wait_uu") == b"answer"
                        code, _, trailing = await status(on(opened, "spend_uu")(b""))
            assert (code, trailing["hangup-cause"]) == ("ABORTED", "disconnect")
            assert server.left == [None]
