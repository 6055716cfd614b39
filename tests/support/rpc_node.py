"""One of several agents in processes of their own that call each other over gRPC.

``python -m support.rpc_node NAME``: asked to work, it asks the model at ``MODEL`` for
an answer and meanwhile the next agent, where there is one, to work too. It says its
port on stdout, is told the next one's target on stdin, and ends with that.

A request is a JSON list of what each agent is to do: the method the next one is called
by, and whether it is deaf: whether it goes on with what it has begun, come what may.
``work_*`` is enforced, ``watch_*`` is observed; ``BUDGET`` is for both. ``SKEW`` is by
how many seconds the wall clock is ahead.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from typing import TYPE_CHECKING, Any

import grpc  # type: ignore[import-untyped]
from openai import AsyncOpenAI
from opentelemetry.instrumentation.genai.openai import OpenAIInstrumentor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.trace import TracerProvider
from support.books import writing
from support.rpc import on, path, service

import hangup
from hangup.core.clock import SystemClock
from hangup.servers.grpc import AioInterceptor

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

_SKEW = float(os.environ.get("SKEW", "0"))


def _wall() -> float:
    return time.time() + _SKEW


class Node:
    """The agent."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.client = AsyncOpenAI(
            base_url=os.environ["MODEL"], api_key="test", max_retries=0
        )
        self.next: Any = None
        self._aside: set[asyncio.Future[Any]] = set()

    async def _ask(self) -> str:
        stream = await self.client.chat.completions.create(
            model=self.name,
            messages=[{"role": "user", "content": "Well?"}],
            stream=True,
            stream_options={"include_usage": True},
        )
        async with stream:
            pieces = [
                chunk.choices[0].delta.content or ""
                async for chunk in stream
                if chunk.choices
            ]
        return "".join(pieces)

    async def _pass_on(self, plan: list[Any]) -> str:
        if self.next is None or not plan:
            return ""
        call = on(self.next, plan[0][0])(json.dumps(plan).encode())
        if hasattr(call, "__aiter__"):
            return "".join([piece.decode() async for piece in call])
        answer: bytes = await call
        return answer.decode()

    async def _work(self, request: bytes) -> bytes:
        (_, deaf), *rest = json.loads(request)
        both: asyncio.Future[Any] = asyncio.gather(self._ask(), self._pass_on(rest))
        if deaf:
            self._aside.add(both)
            both = asyncio.shield(both)
        return "".join(await both).encode()

    async def work_uu(self, request: bytes, context: Any) -> bytes:
        return await self._work(request)

    async def work_us(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        yield b"begun"
        yield await self._work(request)

    @property
    def methods(self) -> dict[str, Any]:
        """The same, by both names."""
        plain = {"uu": self.work_uu, "us": self.work_us}
        return {f"{m}_{k}": one for m in ("work", "watch") for k, one in plain.items()}


async def main(name: str) -> None:
    SystemClock.wall = staticmethod(_wall)
    tracers = TracerProvider(shutdown_on_exit=False)
    hangup.instrument(tracer_provider=tracers, meter_provider=writing(), mode="enforce")
    OpenAIInstrumentor().instrument(
        tracer_provider=tracers, meter_provider=MeterProvider(shutdown_on_exit=False)
    )
    node = Node(name)
    # The first call imports for a good part of a second; the tests have less.
    await node.client.models.list()
    assert node.client.chat.completions
    budget = os.environ.get("BUDGET")
    watched = {"mode": "observe"}
    interceptor = AioInterceptor(
        budget=None if budget is None else float(budget),
        routes={path("watch_*"): watched},
    )
    server = grpc.aio.server(interceptors=[interceptor])
    server.add_generic_rpc_handlers((service(**node.methods),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)  # noqa: T201  to whoever started it
    if target := (await asyncio.to_thread(sys.stdin.readline)).strip():
        node.next = grpc.aio.insecure_channel(target)
    await asyncio.to_thread(sys.stdin.read)
    await server.stop(None)
    await node.client.close()
    if node.next is not None:
        await node.next.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
