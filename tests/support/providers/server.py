"""A model server that speaks four dialects, under uvicorn on loopback.

It is the only fake of the tests that use it, and its log is their truth. Tokens are
logged right before they are written; generation ends when the caller is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import time
from typing import TYPE_CHECKING, Any, Self

from support.providers.dialects import (
    Anthropic,
    Gemini,
    OpenAIChat,
    OpenAIResponses,
)
from support.providers.log import Log, Request
from support.providers.script import Script
from support.servers import Served

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

    from support.providers.dialects import Dialect, Event

    Plan = Callable[[Mapping[str, Any]], Script]

_GEMINI = re.compile(r"/models/([^/:]+):(generateContent|streamGenerateContent)$")
_PATHS: dict[str, Dialect] = {
    "/chat/completions": OpenAIChat(),
    "/responses": OpenAIResponses(),
    "/messages": Anthropic(),
}


class Provider:
    """The server; a context manager. What it answers may be changed at any time.

    Attributes:
        script: How it answers from now on.
        plan: Makes the script of a request from its body, in place of ``script``.
        log: What it was asked and what it generated.
        url: Where it is; clients of OpenAI and Gemini add ``/v1`` and ``/v1beta``.
    """

    def __init__(self, script: Script | None = None, plan: Plan | None = None) -> None:
        self.script = Script() if script is None else script
        self.plan = plan
        self.log = Log()
        self._served = Served(self._app, interface="asgi3", lifespan="off")
        self.url = self._served.url

    def __enter__(self) -> Self:
        self._served.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._served.__exit__(kind, error, trace)

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await _Answer(self, scope, receive, send).give()


class _Answer:
    """One request on its way."""

    def __init__(self, provider: Provider, scope: Any, receive: Any, send: Any) -> None:
        self._log = provider.log
        self._plan = provider.plan
        self._script = provider.script
        self._path: str = scope["path"]
        self._query: bytes = scope["query_string"]
        self._receive = receive
        self._send = send
        self._gone = asyncio.Event()

    async def give(self) -> None:
        """Read the request, answer it and log both."""
        body = b""
        more = True
        while more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                return
            body += message.get("body", b"")
            more = message.get("more_body", False)
        asked: dict[str, Any] = json.loads(body) if body else {}
        dialect = self._dialect(asked)
        if dialect is None:
            await self._begin(404, b"application/json")
            await self._write(b"{}", last=True)
            return
        stream = bool(asked.get("stream"))
        model = str(asked["model"])
        opened = time.monotonic()
        if self._plan is not None:
            self._script = self._plan(asked)
        script = self._script
        request = Request(dialect.name, self._path, model, stream, script.input, opened)
        request.asked, request.refusal = asked, script.refusal
        self._log.opened(request)
        if script.refusal:
            await self._refuse(script.refusal)
            self._log.closed(request, cut=False)
            return
        watch = asyncio.create_task(self._watch())
        cut = True
        try:
            if stream:
                cut = not await self._stream(dialect, asked, request)
            else:
                cut = not await self._whole(dialect, asked, request)
        finally:
            watch.cancel()
            self._log.closed(request, cut=cut)

    async def _refuse(self, why: str) -> None:
        error = {"type": "invalid_request_error", "message": why}
        await self._begin(400, b"application/json")
        await self._write(
            json.dumps({"type": "error", "error": error}).encode(), last=True
        )

    def _dialect(self, asked: dict[str, Any]) -> Dialect | None:
        for ending, dialect in _PATHS.items():
            if self._path.endswith(ending):
                return dialect
        found = _GEMINI.search(self._path)
        if found is None:
            return None
        # These two are in the path where the others have them in the body.
        asked["model"] = found[1]
        asked["stream"] = found[2] == "streamGenerateContent"
        return Gemini()

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._gone.set()

    async def _stream(
        self, dialect: Dialect, asked: dict[str, Any], request: Request
    ) -> bool:
        """Return whether the answer is complete."""
        script = self._script
        # Without alt=sse Gemini sends one JSON array, piece by piece.
        array = dialect.name == Gemini.name and b"alt=sse" not in self._query
        kind = b"application/json" if array else b"text/event-stream"
        await self._begin(200, kind)
        between = b"["
        shown = 0
        await self._wait(script.first)
        for event in dialect.stream(asked, script):
            thought = script.reasoning if not request.marks else 0
            if script.hold is not None and event.tokens and shown >= script.hold:
                await self._gone.wait()
            if event.tokens:
                await self._wait(event.tokens / script.rate)
            if self._gone.is_set():
                return False
            self._note(event, request)
            shown += max(0, event.tokens - thought)
            data = event.data
            if array:
                data = between + data.removeprefix(b"data: ").rstrip()
                between = b",\r\n"
            await self._write(data)
        await self._write(b"]" if array else b"", last=True)
        return True

    def _note(self, event: Event, request: Request) -> None:
        if event.tokens:
            self._log.generated(request, event.tokens)
        request.told = request.told or event.tells

    async def _whole(
        self, dialect: Dialect, asked: dict[str, Any], request: Request
    ) -> bool:
        """Return whether the answer is complete."""
        script = self._script
        await self._wait(script.first)
        for done in range(script.tokens):
            if script.hold is not None and done >= script.hold:
                await self._gone.wait()
            await self._wait(1 / script.rate)
            if self._gone.is_set():
                return False
            self._log.generated(request, 1)
        request.told = True
        await self._begin(200, b"application/json")
        await self._write(json.dumps(dialect.whole(asked, script)).encode(), last=True)
        return True

    async def _wait(self, seconds: float) -> None:
        """Wait, but not for a caller that has gone."""
        if seconds <= 0:
            return
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._gone.wait(), seconds)

    async def _begin(self, status: int, kind: bytes) -> None:
        headers = [(b"content-type", kind), (b"x-request-id", b"req_1")]
        start = {"type": "http.response.start", "status": status, "headers": headers}
        await self._send(start)

    async def _write(self, data: bytes, *, last: bool = False) -> None:
        body = {"type": "http.response.body", "body": data, "more_body": not last}
        await self._send(body)
