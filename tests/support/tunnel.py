"""A proxy by whose word any host name is a server of ours."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


async def _pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while piece := await reader.read(65536):
            writer.write(piece)
            await writer.drain()
    writer.close()


@contextlib.asynccontextmanager
async def tunnel(target: str) -> AsyncIterator[tuple[tuple[str, str], ...]]:
    """Take every CONNECT to ``target``; gives the options of a gRPC channel.

    The client never resolves the name it calls: with a proxy that is the proxy's part.
    """
    host, _, port = target.rpartition(":")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        there, back = await asyncio.open_connection(host, int(port))
        await asyncio.gather(_pour(reader, back), _pour(there, writer))

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    proxy = server.sockets[0].getsockname()[1]
    async with server:
        yield (("grpc.http_proxy", f"http://127.0.0.1:{proxy}"),)
