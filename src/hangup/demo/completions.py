"""The chat endpoint as a pure ASGI app: generates over time, notices the close.

The request's own receive task tells within a loop turn that the caller hung up,
for streams and for plain calls alike; nothing waits for a write to fail.
"""

from __future__ import annotations

import asyncio
import json
import time
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Literal

from starlette.responses import JSONResponse

from hangup.demo.brain import Script, compose
from hangup.demo.journal import CallRecord, ModelLog
from hangup.demo.seeds import seed_of
from hangup.demo.shapes import Shapes, error
from hangup.demo.workload import PATH_HEADER, USER_HEADER

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.types import Receive, Scope, Send

OnClose = Literal["stop", "finish"]
SCRIPT_HEADER = "x-model-script"


class ChatCompletions:
    """``POST /v1/chat/completions``.

    Args:
        log: Where every call is written down.
        script_for: The script of the next call to a model.
        seed: Seeds requests that bring no ``seed`` of their own, by their number.
        on_close: ``stop`` ends generating when the caller hangs up, ``finish``
            goes on to the end of the answer, as some providers do.

    Attributes:
        stopping: Set it to end generating for callers that are gone.
    """

    def __init__(
        self,
        log: ModelLog,
        script_for: Callable[[str], Script],
        *,
        seed: int = 0,
        on_close: OnClose = "stop",
    ) -> None:
        self.stopping = asyncio.Event()
        if on_close == "stop":
            self.stopping.set()
        self._log = log
        self._script_for = script_for
        self._seed = seed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        opened = time.monotonic()
        headers = {
            name.decode("latin-1"): value.decode("latin-1")
            for name, value in scope["headers"]
        }
        try:
            body = json.loads(await _read_body(receive))
            script = self._script_for(str(body["model"]))
            if SCRIPT_HEADER in headers:
                script = script.overridden(headers[SCRIPT_HEADER])
        except (ValueError, KeyError, TypeError) as mistake:
            response = JSONResponse(error(repr(mistake)), HTTPStatus.BAD_REQUEST)
            await response(scope, receive, send)
            return
        except ConnectionResetError:
            return
        number = self._log.opened
        seed = body.get("seed")
        if seed is None:
            seed = seed_of(self._seed, "request", number)
        reply = compose(body, seed, script)
        failing = script.status >= HTTPStatus.BAD_REQUEST
        record = CallRecord(
            id=f"chatcmpl-{number:06d}",
            user=headers.get(USER_HEADER, ""),
            path=headers.get(PATH_HEADER, ""),
            model=str(body["model"]),
            stream=bool(body.get("stream")),
            opened=opened,
            status=script.status,
            input_tokens=0 if failing else reply.input_tokens,
            headers=headers,
        )
        self._log.add(record)
        line = _Line(self._log, record, receive, send, self.stopping)
        shapes = Shapes(record.id, record.model, reply)
        try:
            if script.silent:
                await line.until_gone()
            elif failing:
                if await line.alive_at(opened + script.first_token):
                    await line.send_json(error("scripted"), script.status)
            elif record.stream:
                options = body.get("stream_options") or {}
                await _stream(line, shapes, usage=bool(options.get("include_usage")))
            else:
                await _whole(line, shapes)
        finally:
            line.over()


async def _whole(line: _Line, shapes: Shapes) -> None:
    record = line.record
    chunks = [(record.opened + c.offset, c.tokens) for c in shapes.reply.chunks]
    generating = await line.alive_at(chunks[-1][0] if chunks else record.opened)
    now = time.monotonic()
    record.chunks = [chunk for chunk in chunks if generating or chunk[0] <= now]
    if generating and not record.cut:
        await line.send_json(shapes.whole())
        record.usage_sent = True


async def _stream(line: _Line, shapes: Shapes, *, usage: bool) -> None:
    record = line.record
    await line.send_head(b"text/event-stream; charset=utf-8")
    for index, chunk in enumerate(shapes.reply.chunks):
        if not await line.alive_at(record.opened + chunk.offset):
            return
        record.chunks.append((time.monotonic(), chunk.tokens))
        line.changed()
        await line.send_event(shapes.chunk(index))
    if usage and not record.cut:
        await line.send_event(shapes.usage_chunk())
        record.usage_sent = True
    await line.send(b"data: [DONE]\n\n", more=False)


class _Line:
    """The connection of one call: what is sent, and whether somebody listens."""

    def __init__(
        self,
        log: ModelLog,
        record: CallRecord,
        receive: Receive,
        send: Send,
        stopping: asyncio.Event,
    ) -> None:
        self.record = record
        self._log = log
        self._send = send
        self._stopping = stopping
        self._gone = asyncio.ensure_future(_until_disconnect(receive))

    def changed(self) -> None:
        """Wake whoever waits for what the log now says."""
        self._log.changed()

    async def until_gone(self) -> None:
        """Wait for the caller to hang up."""
        await asyncio.wait({self._gone})
        self._hung_up()

    async def alive_at(self, due: float) -> bool:
        """Wait until ``due``; False: the caller hung up and generating ends."""
        if not self._gone.done():
            left = due - time.monotonic()
            if left > 0:
                await asyncio.wait({self._gone}, timeout=left)
        if not self._gone.done():
            return True
        self._hung_up()
        try:
            async with asyncio.timeout(due - time.monotonic()):
                await self._stopping.wait()
        except TimeoutError:
            return True
        return False

    async def send_head(self, content_type: bytes, *more: tuple[bytes, bytes]) -> None:
        """Send the status 200: a caller may wait for it before it reads."""
        await self._head(HTTPStatus.OK, content_type, *more)

    async def send_event(self, data: dict[str, Any]) -> None:
        """Send one server-sent event."""
        await self.send(f"data: {json.dumps(data)}\n\n".encode(), more=True)

    async def send_json(self, data: dict[str, Any], status: int = 200) -> None:
        """Send a whole response."""
        body = json.dumps(data).encode()
        length = (b"content-length", str(len(body)).encode())
        await self._head(status, b"application/json", length)
        await self.send(body, more=False)

    async def send(self, body: bytes, *, more: bool) -> None:
        """Send a part of the body, unless nobody listens any more."""
        if not self.record.cut:
            await self._send(
                {"type": "http.response.body", "body": body, "more_body": more}
            )

    def over(self) -> None:
        """Write down the end; also for a handler that was cancelled."""
        self._gone.cancel()
        now = time.monotonic()
        if self.record.closed is None:
            self.record.closed = now
        self.record.ended = now
        self.changed()

    async def _head(
        self, status: int, content_type: bytes, *more: tuple[bytes, bytes]
    ) -> None:
        headers = [(b"content-type", content_type), *more]
        await self._send(
            {"type": "http.response.start", "status": status, "headers": headers}
        )

    def _hung_up(self) -> None:
        if self.record.closed is None:
            self.record.closed = time.monotonic()
            self.record.cut = True
            self.changed()


async def _read_body(receive: Receive) -> bytes:
    """Return the request's body.

    Raises:
        ConnectionResetError: The caller hung up before it had sent all of it.
    """
    parts = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ConnectionResetError
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(parts)


async def _until_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
