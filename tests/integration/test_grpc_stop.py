"""``server.stop`` of ``grpc.server``, with calls in flight: why they end, and when."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import grpc  # type: ignore[import-untyped]
import pytest
from openai import OpenAI
from support.core import in_loop
from support.pulse import Pulse
from support.requires import wide
from support.rig import IN_TIME, MODEL, Rig, rig
from support.rpc import all_speak, channel, on, service, status

from hangup.demo.brain import Script
from hangup.servers.grpc import Interceptor

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

pytestmark = pytest.mark.timeout(60)

STREAMING = ("ask_uu", "ask_us", "ask_su", "ask_ss")
KINDS = (*STREAMING, "block_uu")
SCRIPT = Script(tokens=400, input_tokens=20, rate=20, first_token=0.05, chunk_most=1)
"""Twenty seconds, and a chunk at which a thread can stop every twentieth of one."""
PATIENCE = 10.0


class Agent:
    """Handlers that stream the model on their thread, and one that does nothing more.

    Attributes:
        go_on: Lets that one go on.
        went_on: Set when it has.
    """

    def __init__(self, rig_: Rig) -> None:
        self._client = OpenAI(
            base_url=rig_.model.base_url, api_key="test", max_retries=0
        )
        self.go_on = threading.Event()
        self.went_on = threading.Event()

    def warm(self) -> None:
        """Import what the first call imports."""
        self._client.models.list()
        assert self._client.chat.completions

    def close(self) -> None:
        self._client.close()

    def _pieces(self) -> Iterator[bytes]:
        stream = self._client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "Well?"}], stream=True
        )
        with stream:
            for chunk in stream:
                if chunk.choices:
                    yield (chunk.choices[0].delta.content or "").encode()

    def ask_uu(self, request: bytes, context: Any) -> bytes:
        return b"".join(self._pieces())

    def ask_us(self, request: bytes, context: Any) -> Iterator[bytes]:
        yield from self._pieces()

    def ask_su(self, requests: Any, context: Any) -> bytes:
        return b"".join(piece for _ in requests for piece in self._pieces())

    def ask_ss(self, requests: Any, context: Any) -> Iterator[bytes]:
        for _ in requests:
            yield from self._pieces()

    def block_uu(self, request: bytes, context: Any) -> bytes:
        """Nothing interrupts a thread."""
        pieces = self._pieces()
        next(pieces)
        self.go_on.wait(3 * PATIENCE)
        self.went_on.set()
        return next(pieces)

    @property
    def methods(self) -> dict[str, Any]:
        return {kind: getattr(self, kind) for kind in KINDS}


async def _requests() -> AsyncIterator[bytes]:
    yield b"?"


@pytest.mark.parametrize("grace", [None, wide(0.5)])
@pytest.mark.parametrize("by_hand", [True, wide(False)])  # noqa: FBT003  a value
@in_loop
async def test_a_server_on_threads_that_stops_ends_its_calls_by_shutdown(
    grace: float | None,
    by_hand: bool,  # noqa: FBT001  a case
) -> None:
    """Every run is counted as that, and the stop waits for none of their threads."""
    async with rig(SCRIPT, mode="enforce") as rig_:
        agent = Agent(rig_)
        await asyncio.to_thread(agent.warm)
        with ThreadPoolExecutor(8, "rpc") as pool:
            server = grpc.server(pool, interceptors=[Interceptor()] * by_hand)
            server.add_generic_rpc_handlers((service(**agent.methods),))
            port = server.add_insecure_port("127.0.0.1:0")
            server.start()
            async with channel(f"127.0.0.1:{port}") as opened, Pulse() as pulse:
                calls = [
                    on(opened, kind)(_requests() if kind[-2] == "s" else b"?")
                    for kind in KINDS
                ]
                await all_speak(rig_.model.log, len(KINDS))
                began = time.monotonic()
                stopped = await asyncio.to_thread(server.stop, grace)
                assert await asyncio.to_thread(stopped.wait, PATIENCE)
                took = time.monotonic() - began
                assert took <= (grace or 0) + 1.0 + pulse.allowance
                ends = await asyncio.gather(*map(status, calls))
                assert {code for code, _, _ in ends} <= {"UNAVAILABLE", "CANCELLED"}
                # Also that of the thread that hears of nothing.
                await rig_.model.log.closed_count(len(KINDS), PATIENCE)
                limit = (grace or 0) + IN_TIME + pulse.allowance
            assert not agent.went_on.is_set()
            agent.go_on.set()
            assert await asyncio.to_thread(agent.went_on.wait, PATIENCE)
        closed = [call.closed - began for call in rig_.model.log.calls if call.closed]
        assert max(closed) <= limit
        assert rig_.telemetry.abandoned() == {"shutdown": len(KINDS)}
        agent.close()
