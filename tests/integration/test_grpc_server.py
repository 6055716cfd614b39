"""grpc.aio servers: a run per RPC, and what becomes of it."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import grpc  # type: ignore[import-untyped]
import pytest
from support.core import in_loop
from support.requires import wide
from support.rig import IN_TIME, LONG, SHORT, Rig, rig
from support.rpc import channel, on, path, service, serving, status

import hangup
from hangup.core.current import current_run
from hangup.otel import names
from hangup.servers.grpc import AioInterceptor

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.timeout(60)


class Agent:
    """Handlers of every kind that ask the model once."""

    def __init__(self, rig_: Rig) -> None:
        self.rig = rig_
        self.runs: list[Any] = []
        self.ended: list[str] = []

    def note(self) -> None:
        self.runs.append(current_run())

    async def ask_uu(self, request: bytes, context: Any) -> bytes:
        self.note()
        await self.rig.agent.ask()
        return b"answer"

    async def ask_us(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        self.note()
        try:
            async for piece in self.rig.agent.pieces():
                yield piece.encode()
        finally:
            self.ended.append("us")

    async def ask_su(self, requests: Any, context: Any) -> bytes:
        self.note()
        async for _ in requests:
            await self.rig.agent.ask()
        return b"answer"

    async def ask_ss(self, requests: Any, context: Any) -> AsyncIterator[bytes]:
        self.note()
        async for _ in requests:
            async for piece in self.rig.agent.pieces():
                yield piece.encode()

    @property
    def methods(self) -> dict[str, Any]:
        return {
            name: getattr(self, name)
            for name in ("ask_uu", "ask_us", "ask_su", "ask_ss")
        }


KINDS = ["ask_uu", "ask_us", "ask_su", "ask_ss"]


async def requests() -> AsyncIterator[bytes]:
    yield b"?"


def called(opened: Any, kind: str, **options: Any) -> Any:
    request = requests() if kind[-2] == "s" else b"?"
    return on(opened, kind)(request, **options)


async def read(call: Any) -> bytes:
    if hasattr(call, "__aiter__"):
        return b"".join([piece async for piece in call])
    answer: bytes = await call
    return answer


@in_loop
async def test_an_answer_is_delivered_whatever_the_kind() -> None:
    """Each of the four kinds is one delivered run, named by its method."""
    async with rig(SHORT) as rig_, rig_.agent.talking():
        agent = Agent(rig_)
        async with (
            serving(AioInterceptor(budget=30), **agent.methods) as target,
            channel(target) as opened,
        ):
            calls = [called(opened, kind) for kind in KINDS]
            answers = await asyncio.gather(*map(read, calls))
            assert all(answers)
            for call in calls:
                assert (await status(call))[0] == "OK"
        runs = rig_.telemetry.series(names.RUNS)[names.RUNS]
        ended = {one.labels[names.RUN_NAME]: one.value for one in runs if one.value}
        assert ended == {path(kind): 1 for kind in KINDS}
        assert rig_.telemetry.total(names.RUNS, outcome="delivered") == 4
        assert not rig_.telemetry.tokens("wasted")[1]


@pytest.mark.parametrize("leaving", ["cancel", wide("close")])
@in_loop
async def test_a_client_that_leaves_stops_every_kind(leaving: str) -> None:
    """All four model calls are closed in time, and each run is counted once."""
    async with rig(LONG) as rig_, rig_.agent.talking():
        agent = Agent(rig_)
        async with serving(AioInterceptor(), **agent.methods) as target:
            async with channel(target) as opened:
                calls = [called(opened, kind) for kind in KINDS]
                await rig_.model.log.opened_count(4)
                left = time.monotonic()
                if leaving == "cancel":
                    for call in calls:
                        call.cancel()
                    await rig_.model.log.closed_count(4, IN_TIME)
            await rig_.model.log.closed_count(4, IN_TIME)
            await rig_.closed_in_time(left)
        assert rig_.telemetry.abandoned() == {"disconnect": 4}
        for run in agent.runs:
            assert run.abandonment.at - left < 0.5
        assert agent.ended == ["us"]


@in_loop
async def test_the_budget_ends_every_kind_with_its_status() -> None:
    """Unary and streams alike: DEADLINE_EXCEEDED at the deadline, with the cause."""
    async with rig(LONG) as rig_, rig_.agent.talking():
        agent = Agent(rig_)
        routes = {path("ask_ss"): {"budget": 1.0}}
        interceptor = AioInterceptor(budget=1.0, routes=routes)
        async with (
            serving(interceptor, **agent.methods) as target,
            channel(target) as opened,
        ):
            calls = [called(opened, kind) for kind in KINDS]
            for call in calls:
                code, words, trailing = await status(call)
                assert code == "DEADLINE_EXCEEDED"
                assert words == "The deadline passed before there was an answer."
                assert trailing["hangup-cause"] == "deadline"
            await rig_.model.log.closed_count(4, IN_TIME)
            await rig_.closed_in_time(max(run.deadline.at for run in agent.runs))
        assert rig_.telemetry.abandoned() == {"deadline": 4}


@in_loop
async def test_the_deadline_of_the_call_only_tightens_the_budget() -> None:
    async with rig(LONG) as rig_, rig_.agent.talking():
        agent = Agent(rig_)
        async with (
            serving(AioInterceptor(budget=1.2), **agent.methods) as target,
            channel(target) as opened,
        ):
            short = called(opened, "ask_uu", timeout=0.8)
            long = called(opened, "ask_us", timeout=60)
            await asyncio.gather(status(short), status(long))
            await rig_.model.log.closed_count(2, IN_TIME)
        given = sorted(run.deadline.at - run.started_at for run in agent.runs)
        assert 0.4 < given[0] <= 0.8
        assert given[1] == pytest.approx(1.2, abs=0.2)
        assert rig_.telemetry.abandoned() == {"deadline": 2}


@in_loop
async def test_each_cause_has_its_status() -> None:
    async with rig(LONG) as rig_, rig_.agent.talking():
        agent = Agent(rig_)
        async with (
            serving(AioInterceptor(), **agent.methods) as target,
            channel(target) as opened,
        ):
            expected = {
                "killed": "ABORTED",
                "superseded": "ABORTED",
                "shutdown": "UNAVAILABLE",
            }
            for number, (cause, code) in enumerate(expected.items(), 1):
                call = called(opened, "ask_uu")
                await rig_.model.log.opened_count(number)
                agent.runs[-1].cancel(cause)
                found, _, trailing = await status(call)
                assert (found, trailing["hangup-cause"]) == (code, cause)
            await rig_.model.log.closed_count(3, IN_TIME)


@in_loop
async def test_a_latent_run_is_nobodys_business() -> None:
    """An RPC that spends nothing is as it is without us: its budget cuts nothing."""

    async def save_uu(request: bytes, context: Any) -> bytes:
        await asyncio.sleep(0.3)
        return b"saved"

    async with rig(LONG) as rig_:
        async with (
            serving(AioInterceptor(budget=0.1), save_uu=save_uu) as target,
            channel(target) as opened,
        ):
            assert await on(opened, "save_uu")(b"") == b"saved"
        assert not rig_.telemetry.total(names.RUNS)


@in_loop
async def test_observe_never_interferes() -> None:
    """Past its budget an RPC goes on, and its answer is delivered, late."""
    async with rig(SHORT) as rig_, rig_.agent.talking():
        slow: list[Any] = []

        async def ask_uu(request: bytes, context: Any) -> bytes:
            slow.append(current_run())
            await rig_.agent.ask()
            await asyncio.sleep(max(0.0, slow[0].remaining()) + 0.05)
            await rig_.agent.ask()
            return b"answer"

        async with (
            serving(AioInterceptor(budget=0.5, mode="observe"), ask_uu=ask_uu) as to,
            channel(to) as opened,
        ):
            assert await on(opened, "ask_uu")(b"") == b"answer"
        assert rig_.telemetry.total(names.RUNS, outcome="late") == 1
        assert rig_.telemetry.tokens("wasted") == (0, 0)


@in_loop
async def test_in_observe_the_deadline_of_a_call_is_real() -> None:
    """gRPC has ended it itself: nobody gets the answer, and that is why."""
    async with rig(LONG) as rig_, rig_.agent.talking():
        agent = Agent(rig_)
        async with (
            serving(AioInterceptor(mode="observe"), **agent.methods) as target,
            channel(target) as opened,
        ):
            calls = [called(opened, kind, timeout=1.0) for kind in KINDS]
            ends = [await status(call) for call in calls]
            assert {code for code, _, _ in ends} == {"DEADLINE_EXCEEDED"}
            await rig_.model.log.closed_count(4, IN_TIME)
        assert rig_.telemetry.abandoned() == {"deadline": 4}


@in_loop
async def test_an_error_fails_the_run_and_a_refusal_of_the_handler_does_not() -> None:
    async with rig(SHORT) as rig_, rig_.agent.talking():

        async def ask_uu(request: bytes, context: Any) -> bytes:
            await rig_.agent.ask()
            if request == b"not found":
                await context.abort(grpc.StatusCode.NOT_FOUND, "none")
            if request == b"internal":
                await context.abort(grpc.StatusCode.INTERNAL, "broken")
            raise ValueError("no")

        async with (
            serving(AioInterceptor(), ask_uu=ask_uu) as target,
            channel(target) as opened,
        ):
            asking = on(opened, "ask_uu")
            codes = [
                (await status(asking(request)))[0]
                for request in (b"not found", b"internal", b"error")
            ]
        assert codes == ["NOT_FOUND", "INTERNAL", "UNKNOWN"]
        assert rig_.telemetry.abandoned() == {"failed": 2}
        assert rig_.telemetry.total(names.RUNS, outcome="delivered") == 1


@in_loop
async def test_a_timeout_of_the_handler_is_no_leaving() -> None:
    """What the handler cancels of itself says nothing about its client."""
    async with rig(LONG) as rig_, rig_.agent.talking():

        async def ask_uu(request: bytes, context: Any) -> bytes:
            try:
                async with asyncio.timeout(0.3):
                    await rig_.agent.ask()
            except TimeoutError:
                return b"too slow"
            return b"answer"

        async with (
            serving(AioInterceptor(), ask_uu=ask_uu) as target,
            channel(target) as opened,
        ):
            assert await on(opened, "ask_uu")(b"") == b"too slow"
        assert rig_.telemetry.total(names.RUNS, outcome="delivered") == 1


@in_loop
async def test_a_run_may_outlive_its_client() -> None:
    """on_disconnect=finish: the handler goes on, and its result counts."""
    async with rig(SHORT) as rig_, rig_.agent.talking():
        asked, ended = asyncio.Event(), asyncio.Event()

        async def ask_uu(request: bytes, context: Any) -> bytes:
            await rig_.agent.ask()
            run = hangup.current_run()
            assert run is not None
            asked.set()
            while not run.absence.ever:  # noqa: ASYNC110  no such event
                await asyncio.sleep(0.01)
            await rig_.agent.ask()
            ended.set()
            return b"stored"

        interceptor = AioInterceptor(on_disconnect="finish")
        async with (
            serving(interceptor, ask_uu=ask_uu) as target,
            channel(target) as opened,
        ):
            call = on(opened, "ask_uu")(b"")
            await asked.wait()
            call.cancel()
            await asyncio.wait_for(ended.wait(), 10)
        assert rig_.telemetry.total(names.RUNS, outcome="delivered") == 1
        assert rig_.telemetry.abandoned() == {}


@in_loop
async def test_b6_second_cancel_cuts_cleanup() -> None:
    """gRPC's cancel and ours are one: a clean-up that awaits comes to its end."""
    async with rig(LONG) as rig_, rig_.agent.talking():
        flushed: list[str] = []

        async def ask_uu(request: bytes, context: Any) -> bytes:
            try:
                await rig_.agent.ask()
            finally:
                await asyncio.sleep(0.1)
                flushed.append("unary")
            return b"answer"

        async def ask_us(request: bytes, context: Any) -> AsyncIterator[bytes]:
            try:
                async for piece in rig_.agent.pieces():
                    yield piece.encode()
            finally:
                await asyncio.sleep(0.1)
                flushed.append("stream")

        methods = {"ask_uu": ask_uu, "ask_us": ask_us}
        async with serving(AioInterceptor(budget=30), **methods) as to:
            async with channel(to) as opened:
                # gRPC ends these at the instant at which their run ends, too.
                late = [on(opened, one)(b"", timeout=2.5) for one in methods]
                left = [on(opened, one)(b"") for one in methods]
                await rig_.model.log.opened_count(4)
                for call in left:
                    call.cancel()
                await asyncio.gather(*map(status, late))
            async with asyncio.timeout(10):
                while len(flushed) < 4:  # noqa: ASYNC110  no such event
                    await asyncio.sleep(0.01)
        assert sorted(flushed) == ["stream", "stream", "unary", "unary"]
        assert rig_.telemetry.abandoned() == {"deadline": 2, "disconnect": 2}


@pytest.mark.parametrize("grace", [None, wide(0.4)])
@in_loop
async def test_a_server_that_stops_tells_its_callers_to_try_again(
    grace: float | None,
) -> None:
    """UNAVAILABLE, cause shutdown, before gRPC cuts them off."""
    async with rig(LONG) as rig_, rig_.agent.talking():
        agent = Agent(rig_)
        server = grpc.aio.server(interceptors=[AioInterceptor()])
        server.add_generic_rpc_handlers((service(**agent.methods),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        async with channel(f"127.0.0.1:{port}") as opened:
            calls = [called(opened, kind) for kind in KINDS]
            await rig_.model.log.opened_count(4)
            await server.stop(grace)
            for call in calls:
                code, _, trailing = await status(call)
                assert (code, trailing["hangup-cause"]) == ("UNAVAILABLE", "shutdown")
        await rig_.model.log.closed_count(4, IN_TIME)
        assert rig_.telemetry.abandoned() == {"shutdown": 4}


@in_loop
async def test_hostile_metadata_is_no_metadata() -> None:
    """Whatever comes in: the call is served, no run is cut, none lasts for ever."""
    async with rig(SHORT) as rig_, rig_.agent.talking():
        agent = Agent(rig_)
        token = "ab" * 16
        hostile: list[tuple[str, Any]] = [
            ("hangup", "x" * 4000),
            ("hangup", f't="{token}", l=-1'),
            ("hangup", f't="{token}", d=1, l=99999999999999999'),
            ("hangup-bin", b"\xff\x00"),
            ("baggage", "hangup.token=zz,hangup.left=0"),
            ("baggage", ",=;%%%" * 200),
            ("x-hangup-budget", "-1"),
            ("x-hangup-budget", "nan"),
        ]
        async with (
            serving(AioInterceptor(budget=30), ask_uu=agent.ask_uu) as target,
            channel(target) as opened,
        ):
            asking = on(opened, "ask_uu")
            calls = [asking(b"", metadata=(pair,)) for pair in hostile]
            assert await asyncio.gather(*calls) == [b"answer"] * len(hostile)
        for run in agent.runs:
            assert not run.joined
            assert run.deadline.at - run.started_at == pytest.approx(30, abs=0.5)
