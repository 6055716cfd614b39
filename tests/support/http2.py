"""A client of HTTP/2 with prior knowledge, that can reset one stream of many.

The common client libraries close a stream they do not want by leaving it open, or by
closing the connection. What a browser does when a tab is closed is a reset.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

import h2.config
import h2.connection
import h2.errors
import h2.events

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping


@dataclass
class Stream:
    """One request and what came back.

    Attributes:
        ended: The server has ended it, cleanly.
        reset: The server has reset it, and why; None if it has not.
        said: Set when some of the body has come.
        over: Set when it is ended or reset, or the connection is gone.
    """

    id: int
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    ended: bool = False
    reset: int | None = None
    said: asyncio.Event = field(default_factory=asyncio.Event)
    over: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def status(self) -> int:
        return int(self.headers[":status"])

    async def finished(self, within: float = 20.0) -> Self:
        """Wait until nothing more will come."""
        async with asyncio.timeout(within):
            await self.over.wait()
        return self


class Connection:
    """One connection; use :func:`connected`."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._reader, self._writer = reader, writer
        config = h2.config.H2Configuration(client_side=True, header_encoding="utf-8")
        self._state = h2.connection.H2Connection(config)
        self.streams: dict[int, Stream] = {}

    def open(self, path: str, headers: Mapping[str, str] | None = None) -> Stream:
        """Ask for ``path`` on a stream of its own."""
        return self._open({":method": "GET"}, path, headers or {}, end=True)

    def open_websocket(self, path: str) -> Stream:
        """Open a WebSocket (RFC 8441); what the server says is in the body, framed."""
        method = {":method": "CONNECT", ":protocol": "websocket"}
        return self._open(method, path, {"sec-websocket-version": "13"}, end=False)

    def _open(
        self,
        method: Mapping[str, str],
        path: str,
        headers: Mapping[str, str],
        *,
        end: bool,
    ) -> Stream:
        number = self._state.get_next_available_stream_id()
        address = {":authority": "agent", ":scheme": "http", ":path": path}
        fields = {**method, **address, **headers}
        self._state.send_headers(number, list(fields.items()), end_stream=end)
        self._flush()
        stream = self.streams[number] = Stream(number)
        return stream

    def reset(self, stream: Stream) -> None:
        """Leave one stream, as a browser does; the others are not concerned."""
        self._state.reset_stream(stream.id, h2.errors.ErrorCodes.CANCEL)
        self._flush()

    def begin(self) -> None:
        self._state.initiate_connection()
        self._flush()

    async def read(self) -> None:
        """Take what comes until the server closes."""
        while data := await self._reader.read(65536):
            for event in self._state.receive_data(data):
                self._take(event)
            self._flush()
        for stream in self.streams.values():
            stream.over.set()

    def close(self) -> None:
        self._writer.close()

    def _flush(self) -> None:
        self._writer.write(self._state.data_to_send())

    def _take(self, event: h2.events.Event) -> None:
        stream = self.streams.get(getattr(event, "stream_id", 0) or 0)
        if stream is None:
            return
        match event:
            case h2.events.ResponseReceived():
                stream.headers = dict(event.headers)  # type: ignore[arg-type]
            case h2.events.DataReceived():
                stream.body += event.data
                stream.said.set()
                self._state.acknowledge_received_data(
                    event.flow_controlled_length, stream.id
                )
            case h2.events.StreamEnded():
                stream.ended = True
                stream.over.set()
            case h2.events.StreamReset():
                stream.reset = int(event.error_code or 0)
                stream.over.set()
            case _:
                pass


@contextlib.asynccontextmanager
async def connected(port: int) -> AsyncIterator[Connection]:
    """Open a connection for the block."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    connection = Connection(reader, writer)
    connection.begin()
    reading = asyncio.create_task(connection.read())
    try:
        yield connection
    finally:
        connection.close()
        await asyncio.wait((reading,))
