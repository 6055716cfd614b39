"""A gRPC service whose handlers spend, of either kind of server."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from support.rpc import serving, serving_threads
from support.telemetry import Telemetry, chat, used

from hangup.core.current import current_run

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator


class Spending:
    """Handlers that spend 10 and 5 tokens each, and log what came to them.

    Attributes:
        telemetry: Where they tell of it; to be given before the first call.
        metadata: Of each call.
        runs: That each call was served in, or None.
    """

    def __init__(self, telemetry: Telemetry | None = None) -> None:
        self.telemetry = telemetry
        self.metadata: list[list[tuple[str, Any]]] = []
        self.runs: list[Any] = []

    def spend(self, context: Any) -> None:
        """Serve one call."""
        assert self.telemetry is not None
        self.metadata.append(list(context.invocation_metadata()))
        with chat(self.telemetry.tracer_provider.get_tracer("test")) as span:
            self.runs.append(current_run())
            used(span, 10, 5)

    async def aio_uu(self, request: bytes, context: Any) -> bytes:
        """On a loop."""
        self.spend(context)
        return b"answer"

    async def aio_us(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        """On a loop, in pieces."""
        self.spend(context)
        yield b"answer"

    def sync_uu(self, request: bytes, context: Any) -> bytes:
        """On a thread."""
        self.spend(context)
        return b"answer"

    def sync_us(self, request: bytes, context: Any) -> Iterator[bytes]:
        """On a thread, in pieces."""
        self.spend(context)
        yield b"answer"

    @contextlib.asynccontextmanager
    async def serving(
        self, *, aio: tuple[Any, ...] = (), sync: tuple[Any, ...] = ()
    ) -> AsyncIterator[tuple[str, str]]:
        """Serve on a loop and on threads, behind interceptors; gives the targets."""
        with serving_threads(
            *sync, sync_uu=self.sync_uu, sync_us=self.sync_us
        ) as threads:
            async with serving(*aio, aio_uu=self.aio_uu, aio_us=self.aio_us) as loop:
                yield loop, threads
