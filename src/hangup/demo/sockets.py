"""The smallest HTTP client: one request, one connection, one response.

For the demo's users, whose leaving has to be the closing of a socket with no pool
in between, and for the harness, which should not spend a second on imports.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from urllib.parse import SplitResult


@dataclass(frozen=True, slots=True)
class Response:
    """A complete response."""

    status: int
    body: bytes


class Connection:
    """A connection for one request."""

    def __init__(
        self,
        address: SplitResult,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self._address = address
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, url: str) -> Connection:
        """Connect to the host of ``url``, to ask for its path."""
        address = urlsplit(url)
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        return cls(address, reader, writer)

    def send(
        self, method: str, headers: Mapping[str, str] | None = None, body: bytes = b""
    ) -> None:
        """Write the request."""
        target = self._address.path + (
            f"?{self._address.query}" if self._address.query else ""
        )
        fields = {
            "Host": self._address.netloc,
            "Connection": "close",
            "Content-Length": str(len(body)),
            **(headers or {}),
        }
        head = [f"{method} {target} HTTP/1.1"]
        head += [f"{name}: {value}" for name, value in fields.items()]
        self._writer.write("\r\n".join([*head, "", ""]).encode() + body)

    async def receive(
        self, on_head: Callable[[int], None] = lambda _status: None
    ) -> Response:
        """Return the whole response.

        Args:
            on_head: Told the status as soon as the response has begun.

        Raises:
            EOFError: The server broke it off.
            ConnectionError: Likewise, or the connection was closed here.
        """
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        status = int(head.split(" ", 2)[1])
        on_head(status)
        if "transfer-encoding: chunked" in head:
            return Response(status, await self._chunks())
        length = head.partition("content-length:")[2].partition("\r\n")[0]
        return Response(status, await self._reader.readexactly(int(length or 0)))

    async def _chunks(self) -> bytes:
        parts: list[bytes] = []
        while True:
            size = int(await self._reader.readuntil(b"\r\n"), 16)
            part = await self._reader.readexactly(size + 2)
            if size == 0:
                return b"".join(parts)
            parts.append(part[:-2])

    def hang_up(self) -> float:
        """Close the connection now; see :func:`hang_up`."""
        return hang_up(self._writer)

    def close(self) -> None:
        """Close. Idempotent."""
        self._writer.close()


def hang_up(writer: asyncio.StreamWriter) -> float:
    """Close a connection now, whatever is under way; return when (``time.monotonic``).

    An event loop by itself closes it in its next turn, which on a busy machine may be
    long after its caller believes to have left.
    """
    at = time.monotonic()  # first: nobody hears of it earlier
    with contextlib.suppress(OSError):  # the other side was faster
        writer.get_extra_info("socket").shutdown(socket.SHUT_RDWR)
    writer.transport.abort()
    return at


async def get_json(url: str, within: float = 20.0) -> Any:
    """Return what a GET answers.

    Raises:
        RuntimeError: The status is not 200.
        TimeoutError: It took longer than ``within`` seconds.
    """
    async with asyncio.timeout(within):
        connection = await Connection.open(url)
        try:
            connection.send("GET")
            response = await connection.receive()
        finally:
            connection.close()
    if response.status != 200:  # noqa: PLR2004  HTTP
        raise RuntimeError(f"{url} answered {response.status}")
    return json.loads(response.body)
