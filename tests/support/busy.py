"""A provider that has no time: it answers with an error at once, or never.

Each caller has a base URL of its own, so that many can ask at a time and be told apart.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

WITHIN = 10.0
_HEAD = "HTTP/1.1 {status} Busy\r\ncontent-type: application/json\r\n"


class Busy:
    """Serves on the running loop.

    Args:
        status: What every request is answered with; None never answers.
        headers: Of every answer.

    Attributes:
        opened: When requests came, by caller.
        closed: When their callers hung up before they had an answer, by caller.
    """

    def __init__(self, status: int | None, **headers: str) -> None:
        self._status = status
        self._headers = headers
        self._port = 0
        self._came: dict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self.opened: dict[str, list[float]] = defaultdict(list)
        self.closed: dict[str, list[float]] = defaultdict(list)

    def url(self, caller: str) -> str:
        """Return the base URL of a caller, for either SDK."""
        return f"http://127.0.0.1:{self._port}/{caller}/v1"

    async def came(self, caller: str) -> None:
        """Wait until a caller has asked."""
        async with asyncio.timeout(WITHIN):
            await self._came[caller].wait()

    async def hung_up(self, caller: str, count: int = 1) -> None:
        """Wait until so many of a caller's requests were hung up on."""
        async with asyncio.timeout(WITHIN):
            while len(self.closed[caller]) < count:  # noqa: ASYNC110  no such event
                await asyncio.sleep(0.005)

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            await self._exchange(reader, writer)
        writer.close()

    async def _exchange(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        caller = head.split()[1].split("/")[1]
        self.opened[caller].append(time.monotonic())
        self._came[caller].set()
        if self._status is None:
            while await reader.read(65536):
                pass
            self.closed[caller].append(time.monotonic())
            return
        lines = "".join(
            f"{name.replace('_', '-')}: {value}\r\n"
            for name, value in self._headers.items()
        )
        end = "content-length: 2\r\nconnection: close\r\n\r\n{}"
        writer.write((_HEAD.format(status=self._status) + lines + end).encode())
        await writer.drain()


@contextlib.asynccontextmanager
async def busy(status: int | None = None, **headers: str) -> AsyncIterator[Busy]:
    """Serve on loopback; the arguments are those of :class:`Busy`."""
    provider = Busy(status, **headers)
    server = await asyncio.start_server(provider._serve, "127.0.0.1", 0)
    provider._port = server.sockets[0].getsockname()[1]
    try:
        yield provider
    finally:
        server.close()
