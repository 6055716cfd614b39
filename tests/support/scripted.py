"""A model provider on a real socket whose every byte the test sends itself.

Where a test needs to know what had come by when, it says when: no rates, no sleeps.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

WITHIN = 10.0
HEAD = "HTTP/1.1 {status} X\r\ncontent-type: {type}\r\ntransfer-encoding: chunked\r\n"


class Call:
    """One request that the provider has got."""

    def __init__(
        self, head: str, body: bytes, writer: asyncio.StreamWriter, gone: asyncio.Event
    ) -> None:
        self.method, self.path = head.split()[:2]
        self.headers = {
            name.lower(): value
            for name, _, value in (
                line.partition(": ") for line in head.split("\r\n")[1:] if line
            )
        }
        self.body = body
        self.gone = gone
        self._writer = writer

    @property
    def json(self) -> dict[str, Any]:
        """The request's body."""
        found: dict[str, Any] = json.loads(self.body)
        return found

    async def begin(
        self, status: int = 200, kind: str = "text/event-stream", **headers: str
    ) -> None:
        """Send the head of the answer."""
        extra = "".join(
            f"{name.replace('_', '-')}: {headers[name]}\r\n" for name in headers
        )
        self._writer.write(
            (HEAD.format(status=status, type=kind) + extra + "\r\n").encode()
        )
        await self._writer.drain()

    async def raw(self, data: bytes) -> None:
        """Send bytes of the body as one chunk."""
        self._writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        await self._writer.drain()

    async def event(self, data: object, name: str | None = None) -> None:
        """Send one event of a stream."""
        text = data if isinstance(data, str) else json.dumps(data)
        head = "" if name is None else f"event: {name}\n"
        await self.raw(f"{head}data: {text}\n\n".encode())

    async def say(self, text: str) -> None:
        """Send a piece of text as OpenAI's chat API streams it."""
        delta = {"index": 0, "delta": {"content": text}, "finish_reason": None}
        await self.event({**_CHUNK, "choices": [delta]})

    async def report(self, prompt: int, completion: int) -> None:
        """Send the chunk with the usage, and the end."""
        stop = {"index": 0, "delta": {}, "finish_reason": "stop"}
        await self.event({**_CHUNK, "choices": [stop]})
        usage = {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
        }
        await self.event({**_CHUNK, "choices": [], "usage": usage})
        await self.event("[DONE]")

    async def answer(self, body: object, status: int = 200, **headers: str) -> None:
        """Send a whole answer."""
        await self.begin(status, "application/json", **headers)
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        await self.raw(data)
        await self.finish()

    async def finish(self) -> None:
        """End the body."""
        self._writer.write(b"0\r\n\r\n")
        await self._writer.drain()

    def hang_up(self) -> None:
        """Cut the connection, whatever was answered."""
        self._writer.transport.abort()

    async def left(self) -> None:
        """Wait until the client has closed the connection."""
        async with asyncio.timeout(WITHIN):
            await self.gone.wait()


_CHUNK = {
    "id": "chatcmpl-1",
    "object": "chat.completion.chunk",
    "created": 1,
    "model": "m",
}


def whole(prompt: int, completion: int, text: str = "well") -> dict[str, Any]:
    """Return a whole answer of OpenAI's chat API."""
    message = {"role": "assistant", "content": text}
    return {
        **_CHUNK,
        "object": "chat.completion",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
        },
    }


class Provider:
    """Serves until its context is left; requests wait for the test in a queue."""

    def __init__(self) -> None:
        self.url = ""
        self.requests = 0
        self._calls: asyncio.Queue[Call] = asyncio.Queue()

    async def call(self) -> Call:
        """Wait for the next request."""
        async with asyncio.timeout(WITHIN):
            return await self._calls.get()

    async def serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Take the requests of one connection."""
        gone = asyncio.Event()
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                length = next(
                    (
                        int(line.partition(":")[2])
                        for line in head.lower().split("\r\n")
                        if line.startswith("content-length:")
                    ),
                    0,
                )
                body = await reader.readexactly(length)
                self.requests += 1
                self._calls.put_nowait(Call(head, body, writer, gone))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            gone.set()
            writer.close()


@contextlib.asynccontextmanager
async def scripted() -> AsyncIterator[Provider]:
    """Serve a provider on loopback."""
    provider = Provider()
    server = await asyncio.start_server(provider.serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()[:2]
    provider.url = f"http://{host}:{port}/v1"
    try:
        yield provider
    finally:
        server.close()
