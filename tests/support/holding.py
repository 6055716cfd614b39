"""A proxy that keeps its upstream connection, whatever its client does (case a11)."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@contextlib.asynccontextmanager
async def holding(upstream: int, *headers: str) -> AsyncIterator[int]:
    """Run a proxy before the server on port ``upstream``; yields its own port.

    Args:
        upstream: A port of loopback.
        headers: Lines that it adds to each request.
    """
    open_requests: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        open_requests.add(task)
        head = await reader.readuntil(b"\r\n\r\n")
        added = "".join(f"{line}\r\n" for line in headers).encode()
        source, sink = await asyncio.open_connection("127.0.0.1", upstream)
        sink.write(head[:-2] + added + b"\r\n")
        # The client is written to, and never listened to again.
        while data := await source.read(65536):
            with contextlib.suppress(ConnectionError):
                writer.write(data)
        sink.close()
        writer.close()
        open_requests.discard(task)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        port: int = server.sockets[0].getsockname()[1]
        yield port
        if open_requests:
            await asyncio.wait(open_requests, timeout=10)
