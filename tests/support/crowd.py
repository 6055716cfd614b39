"""Fifty clients at once, on every kind of connection, that leave or wait."""

from __future__ import annotations

import asyncio
import json
import time
from typing import TYPE_CHECKING, Any, Protocol

import websockets
from support.http2 import connected
from support.rig import Caller

if TYPE_CHECKING:
    from support.http2 import Connection, Stream
    from support.serving import Serving

    from hangup.demo.model_server import ModelServer

MANY = 50
KINDS = ("json", "stream", "sse", "ws")
QUICK = "model=quick"
"""Asks for the answer that is short."""
UPGRADE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    "Sec-WebSocket-Version": "13",
}
"""The headers of a WebSocket's opening handshake."""


class Crowd(Protocol):
    """How clients come and go."""

    async def walk_away(self, model: ModelServer) -> list[float]:
        """Ask, wait until all are being answered, leave all at once.

        Returns:
            Seconds from there until each model call was closed.
        """

    async def come_back(self) -> None:
        """Ask for something short, all at once, and see that all get all of it."""


class Http1Crowd:
    """Each on a connection of its own.

    Args:
        served: Whom they ask.
        kind: Of ``KINDS``.
        many: How many there are.
    """

    def __init__(self, served: Serving, kind: str, many: int = MANY) -> None:
        self._kind, self._many = kind, many
        self._served: Any = served  # a caller asks for its port, and for nothing else
        self._headers = UPGRADE if kind == "ws" else {}

    async def walk_away(self, model: ModelServer) -> list[float]:
        before = model.log.opened
        asked = (
            Caller.asks(self._served, f"/{self._kind}", self._headers)
            for _ in range(self._many)
        )
        callers = await asyncio.gather(*asked)
        await model.log.opened_count(before + self._many, within=20)
        left = time.monotonic()
        for caller in callers:
            caller.leaves()
        return await latencies(model, before, left)

    async def come_back(self) -> None:
        once = self._converse if self._kind == "ws" else self._ask
        await asyncio.gather(*(once() for _ in range(self._many)))

    async def _ask(self) -> None:
        caller = await Caller.asks(self._served, f"/{self._kind}?{QUICK}")
        status, headers, body = await caller.answer()
        assert status == 200
        if headers.get("transfer-encoding") == "chunked":
            assert body.endswith(b"\r\n0\r\n\r\n")
        else:
            assert json.loads(body)["answer"]

    async def _converse(self) -> None:
        url = f"ws://127.0.0.1:{self._served.port}/ws?{QUICK}"
        async with websockets.connect(url, proxy=None) as socket:
            assert await socket.recv()
            await socket.send("still there?")
            assert await socket.recv() == "still there?"


class Http2Crowd:
    """All on one connection, with others that stay; each leaves by a reset.

    Args:
        served: Whom they ask.
        kind: Of ``KINDS``.
        many: How many leave.
        staying: How many do not.
    """

    def __init__(
        self, served: Serving, kind: str, many: int = MANY, staying: int = 10
    ) -> None:
        self._served, self._kind = served, kind
        self._many, self._staying = many, staying

    async def walk_away(self, model: ModelServer) -> list[float]:
        before = model.log.opened
        async with connected(self._served.port) as connection:
            leaving = [self._open(connection, "long") for _ in range(self._many)]
            await model.log.opened_count(before + self._many, within=20)
            staying = [self._open(connection, "patient") for _ in range(self._staying)]
            await model.log.opened_count(before + self._many + self._staying, within=20)
            left = time.monotonic()
            for stream in leaving:
                connection.reset(stream)
            found = await latencies(model, before, left)
            for stream in staying:
                await self._answered(connection, stream)
        return found

    async def come_back(self) -> None:
        async with connected(self._served.port) as connection:
            streams = [self._open(connection, "quick") for _ in range(self._many)]
            for stream in streams:
                await self._answered(connection, stream)

    def _open(self, connection: Connection, model: str) -> Stream:
        path = f"/{self._kind}?model={model}"
        if self._kind == "ws":
            return connection.open_websocket(path)
        return connection.open(path)

    async def _answered(self, connection: Connection, stream: Stream) -> None:
        if self._kind == "ws":
            async with asyncio.timeout(20):
                await stream.said.wait()
            connection.reset(stream)  # the handler waits for more: it is not needed
        else:
            await stream.finished()
            assert stream.ended
        assert stream.status == 200
        assert stream.body


async def latencies(model: ModelServer, before: int, left: float) -> list[float]:
    """Seconds from ``left`` to the close of each long call since call ``before``."""
    calls = [call for call in model.log.calls[before:] if call.model == "long"]
    await model.log.wait_for(lambda: all(call.closed for call in calls), within=20)
    assert all(call.cut for call in calls)
    return [call.closed - left for call in calls if call.closed is not None]
