"""grpc servers on threads: a run per RPC, and what becomes of it."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import grpc  # type: ignore[import-untyped]
import pytest
from openai import OpenAI
from support.core import in_loop
from support.rig import IN_TIME, LONG, MODEL, SHORT, Rig, rig
from support.rpc import all_speak, channel, on, path, serving_threads, status

from hangup.core.current import current_run
from hangup.otel import names
from hangup.servers.grpc import Interceptor

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.timeout(60)

KINDS = ["ask_uu", "ask_us", "ask_su", "ask_ss"]


class Agent:
    """Handlers of every kind that stream the model on their thread."""

    def __init__(self, rig_: Rig) -> None:
        url = rig_.model.base_url
        self.client = OpenAI(base_url=url, api_key="test", max_retries=0)
        self.runs: list[Any] = []

    def pieces(self) -> Iterator[bytes]:
        self.runs.append(current_run())
        stream = self.client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "Well?"}],
            stream=True,
            stream_options={"include_usage": True},
        )
        with stream:
            for chunk in stream:
                if chunk.choices:
                    yield (chunk.choices[0].delta.content or "").encode()

    def ask_uu(self, request: bytes, context: Any) -> bytes:
        return b"".join(self.pieces())

    def ask_us(self, request: bytes, context: Any) -> Iterator[bytes]:
        yield from self.pieces()

    def ask_su(self, requests: Any, context: Any) -> bytes:
        return b"".join(piece for _ in requests for piece in self.pieces())

    def ask_ss(self, requests: Any, context: Any) -> Iterator[bytes]:
        for _ in requests:
            yield from self.pieces()

    def fail_uu(self, request: bytes, context: Any) -> bytes:
        b"".join(self.pieces())
        if request == b"not found":
            context.abort(grpc.StatusCode.NOT_FOUND, "none")
        if request == b"internal":
            context.set_code(grpc.StatusCode.INTERNAL)
            return b""
        raise ValueError("no")

    @property
    def methods(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in (*KINDS, "fail_uu")}


def called(opened: Any, kind: str, **options: Any) -> Any:
    request = iter([b"?"]) if kind[-2] == "s" else b"?"
    return on(opened, kind)(request, **options)


def warm(agent: Agent) -> Any:
    """Let the client import what it imports at its first call."""
    agent.client.models.list()
    return agent.client.chat.completions


@in_loop
async def test_on_threads_an_answer_is_delivered_and_a_fault_is_not() -> None:
    async with rig(SHORT) as rig_:
        agent = Agent(rig_)
        await asyncio.to_thread(warm, agent)
        with serving_threads(Interceptor(budget=30), **agent.methods) as target:
            async with channel(target) as opened:
                calls = [called(opened, kind) for kind in KINDS]
                asking = on(opened, "fail_uu")
                calls += [asking(b"not found"), asking(b"internal"), asking(b"error")]
                codes = [(await status(call))[0] for call in calls]
        assert codes == [*["OK"] * 4, "NOT_FOUND", "INTERNAL", "UNKNOWN"]
        total = rig_.telemetry.total
        for kind in KINDS:
            assert total(names.RUNS, outcome="delivered", run=path(kind)) == 1
        assert total(names.RUNS, outcome="delivered", run=path("fail_uu")) == 1
        assert rig_.telemetry.abandoned() == {"failed": 2}
        agent.client.close()


@in_loop
async def test_on_threads_a_client_that_leaves_stops_every_kind() -> None:
    """The next chunk of each model stream is the last; each run is counted once."""
    async with rig(LONG) as rig_:
        agent = Agent(rig_)
        await asyncio.to_thread(warm, agent)
        with serving_threads(Interceptor(), **agent.methods) as target:
            async with channel(target) as opened:
                calls = [called(opened, kind) for kind in KINDS]
                await all_speak(rig_.model.log, 4)
                left = time.monotonic()
                for call in calls:
                    call.cancel()
                await rig_.model.log.closed_count(4, IN_TIME)
            await rig_.closed_in_time(left)
        assert rig_.telemetry.abandoned() == {"disconnect": 4}
        for run in agent.runs:
            assert run.abandonment.at - left < 0.5
        agent.client.close()


@in_loop
async def test_on_threads_each_stop_has_its_status() -> None:
    """Deadline, kill and shutdown are told as soon as the handler hears of them."""
    async with rig(LONG) as rig_:
        agent = Agent(rig_)
        await asyncio.to_thread(warm, agent)
        routes = {path("ask_us"): {"budget": 1.0}, path("ask_uu"): {"budget": 1.0}}
        interceptor = Interceptor(routes=routes)
        with serving_threads(interceptor, **agent.methods) as target:
            async with channel(target) as opened:
                late = [called(opened, kind) for kind in ("ask_uu", "ask_us")]
                await rig_.model.log.opened_count(2)
                stopped = []
                for number, cause in enumerate(("killed", "shutdown"), 3):
                    stopped.append(called(opened, "ask_su"))
                    await rig_.model.log.opened_count(number)
                    agent.runs[-1].cancel(cause)
                ends = [await status(call) for call in (*late, *stopped)]
        expected = ["DEADLINE_EXCEEDED", "DEADLINE_EXCEEDED", "ABORTED", "UNAVAILABLE"]
        assert [code for code, _, _ in ends] == expected
        causes = [trailing["hangup-cause"] for _, _, trailing in ends]
        assert causes == ["deadline", "deadline", "killed", "shutdown"]
        await rig_.model.log.closed_count(4)
        agent.client.close()
