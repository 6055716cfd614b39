"""A model's endpoint as a pure ASGI app: generates over time, notices the close.

The request's own receive task tells within a loop turn that the caller hung up,
for streams and for plain calls alike; nothing waits for a write to fail.
"""

from __future__ import annotations

import asyncio
import json
import time
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from starlette.responses import JSONResponse

from hangup.demo.brain import Script, compose
from hangup.demo.chat import Chat
from hangup.demo.journal import CallRecord, ModelLog
from hangup.demo.seeds import seed_of
from hangup.demo.workload import PATH_HEADER, SEED_HEADER, USER_HEADER

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from starlette.types import Receive, Scope, Send

    from hangup.demo.asked import Dialect, Shapes
    from hangup.demo.brain import Reply
    from hangup.demo.workload import OnClose

SCRIPT_HEADER = "x-model-script"
"""A header that scripts one request."""


class Completions:
    """The endpoint that answers, in one dialect or another.

    Args:
        log: Where every call is written down.
        script_for: The script of the next call to a model.
        dialect: What is spoken.
        seed: Seeds requests that bring no seed of their own, by their number.
        on_close: ``stop`` ends generating when the caller hangs up, ``finish``
            goes on to the end of the answer, as some providers do.

    Attributes:
        stopping: Set it to end generating for callers that are gone.
    """

    def __init__(
        self,
        log: ModelLog,
        script_for: Callable[[str], Script],
        dialect: Dialect | None = None,
        *,
        seed: int = 0,
        on_close: OnClose = "stop",
    ) -> None:
        self.stopping = asyncio.Event()
        if on_close == "stop":
            self.stopping.set()
        self._log = log
        self._script_for = script_for
        self._dialect: Dialect = Chat() if dialect is None else dialect
        self._seed = seed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        opened = time.monotonic()
        headers = {
            name.decode("latin-1"): value.decode("latin-1")
            for name, value in scope["headers"]
        }
        try:
            asked = self._dialect.asked(json.loads(await _read_body(receive)))
            script = self._script_for(asked.model)
            if SCRIPT_HEADER in headers:
                script = script.overridden(headers[SCRIPT_HEADER])
            seed = self._seed_of(asked.seed, headers)
        except (ValueError, KeyError, TypeError) as mistake:
            body = self._dialect.error(repr(mistake))
            response = JSONResponse(body, HTTPStatus.BAD_REQUEST)
            await response(scope, receive, send)
            return
        except ConnectionResetError:
            return
        number = self._log.opened
        reply = compose(asked, seed, script)
        failing = script.status >= HTTPStatus.BAD_REQUEST
        record = CallRecord(
            id=f"{number:06d}",
            user=headers.get(USER_HEADER, ""),
            path=headers.get(PATH_HEADER, ""),
            model=asked.model,
            stream=asked.stream,
            opened=opened,
            status=script.status,
            input_tokens=0 if failing else reply.input_tokens,
            headers=headers,
        )
        self._log.add(record)
        line = _Line(self._log, record, receive, send, self.stopping)
        shapes = self._dialect.shapes(number, asked.model, reply)
        try:
            if script.silent:
                await line.until_gone()
            elif failing:
                if await line.alive_at(opened + script.first_token):
                    await line.send_json(self._dialect.error("scripted"), script.status)
            elif record.stream:
                await _stream(line, reply, shapes, usage=asked.tells_usage)
            else:
                await _whole(line, reply, shapes)
        finally:
            line.over()

    def _seed_of(self, own: int | None, headers: Mapping[str, str]) -> int:
        if SEED_HEADER in headers:
            return int(headers[SEED_HEADER])
        return seed_of(self._seed, "request", self._log.opened) if own is None else own


async def _whole(line: _Line, reply: Reply, shapes: Shapes) -> None:
    record = line.record
    chunks = [(record.opened + c.offset, c.tokens) for c in reply.chunks]
    generating = await line.alive_at(chunks[-1][0] if chunks else record.opened)
    now = time.monotonic()
    record.chunks = [chunk for chunk in chunks if generating or chunk[0] <= now]
    if generating and not record.cut:
        await line.send_json(shapes.whole())
        record.input_sent = record.usage_sent = True


async def _stream(line: _Line, reply: Reply, shapes: Shapes, *, usage: bool) -> None:
    record = line.record
    await line.send_head(b"text/event-stream; charset=utf-8")
    opening = shapes.opening()
    for index, chunk in enumerate(reply.chunks):
        if not await line.alive_at(record.opened + chunk.offset):
            return
        record.chunks.append((time.monotonic(), chunk.tokens))
        line.changed()
        # With the first token, not before it: that is when providers open, too.
        await line.send(opening + shapes.chunk(index), more=True)
        record.input_sent |= bool(opening) and not record.cut
        opening = b""
    if not record.cut:
        await line.send(opening + shapes.closing(usage=usage), more=False)
        record.input_sent = record.usage_sent = usage


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
