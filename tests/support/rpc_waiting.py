"""A server that answers only when it is told, and clients that wait for it."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from support.rpc import on

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

KINDS = ["wait_uu", "wait_us", "wait_su", "wait_ss"]


class Waiting:
    """A server that answers only when it is told, spends nothing, and logs.

    Attributes:
        metadata: Of each call, in order.
        left: Seconds that each call had left.
        cancelled: When a call was cut off.
    """

    def __init__(self) -> None:
        self.metadata: list[list[tuple[str, Any]]] = []
        self.left: list[float | None] = []
        self.cancelled: list[float] = []
        self.came = asyncio.Event()
        self.may_answer = asyncio.Event()

    async def _wait(self, context: Any) -> None:
        self.metadata.append(list(context.invocation_metadata()))
        self.left.append(context.time_remaining())
        self.came.set()
        try:
            await self.may_answer.wait()
        except asyncio.CancelledError:
            self.cancelled.append(time.monotonic())
            raise

    async def wait_uu(self, request: bytes, context: Any) -> bytes:
        await self._wait(context)
        return b"answer"

    async def wait_us(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        yield b"first"
        await self._wait(context)
        yield b"last"

    async def wait_su(self, requests: Any, context: Any) -> bytes:
        async for _ in requests:
            await self._wait(context)
        return b"answer"

    async def wait_ss(self, requests: Any, context: Any) -> AsyncIterator[bytes]:
        yield b"first"
        async for _ in requests:
            await self._wait(context)
        yield b"last"

    @property
    def methods(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in KINDS}

    async def count(self, calls: int) -> None:
        while len(self.metadata) < calls:
            self.came.clear()
            await asyncio.wait_for(self.came.wait(), 10)

    async def all_cut(self, calls: int) -> None:
        async with asyncio.timeout(10):
            while len(self.cancelled) < calls:  # noqa: ASYNC110  gRPC's own event
                await asyncio.sleep(0.01)


async def _requests() -> AsyncIterator[bytes]:
    yield b"?"


async def asked(opened: Any, kind: str, **options: Any) -> bytes:
    """Call, and read all there is."""
    request = _requests() if kind[-2] == "s" else b"?"
    call = on(opened, kind)(request, **options)
    if kind[-1] == "s":
        return b" ".join([piece async for piece in call])
    answer: bytes = await call
    return answer


def asked_sync(opened: Any, kind: str, **options: Any) -> bytes:
    """Do the same on a thread."""
    request = iter([b"?"]) if kind[-2] == "s" else b"?"
    call = on(opened, kind)(request, **options)
    return b" ".join(call) if kind[-1] == "s" else bytes(call)
