"""An MCP server whose tools wait, and clients of it over every transport.

The server shares the test's process: over streams also its loop, over HTTP it is under
uvicorn in a thread. The SDK makes its spans on the providers of the test.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from mcp import Client, ClientSession
from mcp.client import streamable_http
from mcp.server import MCPServer
from mcp.shared import _otel
from mcp.shared.memory import create_client_server_memory_streams
from mcp.types import ToolAnnotations
from support.servers import Served
from support.telemetry import Telemetry, instrumented, used
from support.waiting import eventually

import hangup
from hangup.core.current import current_run

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping

    from mcp.server.context import CallNext, ServerRequestContext

    from hangup.core.run import Run

_SAID: ContextVar[Mapping[str, Any] | None] = ContextVar("said", default=None)
TRANSPORTS = ("streams", "http", "http-legacy")
PATIENCE = 10.0


@contextlib.contextmanager
def traced(**settings: Any) -> Iterator[Telemetry]:
    """As ``instrumented``, with the SDK's own spans on the same provider."""
    before = _otel._tracer
    with instrumented(**settings) as telemetry:
        _otel._tracer = telemetry.tracer_provider.get_tracer("mcp-python-sdk")
        try:
            yield telemetry
        finally:
            _otel._tracer = before


class Workshop:
    """The server and what its tools have seen.

    Attributes:
        runs: The run of each call, None where there was none, in order.
        live: How many calls hang now.
        cancels: How many ``notifications/cancelled`` have come.
        go_on: Lets the calls that wait for it go on.
    """

    def __init__(self, telemetry: Telemetry | None = None) -> None:
        self.runs: list[Run | None] = []
        self.live = 0
        self.cancels = 0
        self.done: list[str] = []
        self.go_on = threading.Event()
        self.threads = 0
        self._telemetry = telemetry
        self.server: MCPServer = MCPServer(
            "workshop", log_level="CRITICAL", middleware=[self._listen]
        )
        add = self.server.add_tool
        for tool in (
            self.add,
            self.hang,
            self.check,
            self.spend,
            self.sleep,
            self.fail,
        ):
            add(tool)
        add(self.charge, annotations=ToolAnnotations(destructive_hint=True))

    async def _listen(
        self, ctx: ServerRequestContext[Any, Any], call_next: CallNext
    ) -> Any:
        if ctx.method == "notifications/cancelled":
            self.cancels += 1
        return await call_next(ctx)

    @property
    def run(self) -> Run:
        """The run of the last call."""
        run = self.runs[-1]
        assert run is not None
        return run

    def _seen(self) -> None:
        self.runs.append(current_run())

    async def add(self, a: int, b: int) -> str:
        """Answer at once."""
        self._seen()
        return str(a + b)

    @contextlib.contextmanager
    def _living(self) -> Iterator[None]:
        self._seen()
        self.live += 1
        try:
            yield
        finally:
            self.live -= 1

    async def hang(self) -> str:
        """Answer never."""
        with self._living():
            await asyncio.Event().wait()
        return ""

    async def check(self) -> str:
        """Wait, then ask whether to go on."""
        with self._living():
            await eventually(self.go_on.is_set)
            hangup.check()
        return "went on"

    async def charge(self) -> str:
        """Do in two steps what cannot be undone."""
        with self._living():
            self.done.append("begun")
            await eventually(self.go_on.is_set)
            hangup.check()
            self.done.append("finished")
        return "charged"

    async def spend(self) -> str:
        """Call a model: ten tokens, before and after it may go on."""
        assert self._telemetry is not None
        with self._living():
            for _ in range(2):
                with self._telemetry.tracer().start_as_current_span(
                    "chat m",
                    attributes={
                        "gen_ai.operation.name": "chat",
                        "gen_ai.request.model": "m",
                    },
                ) as span:
                    used(span, 0, 10)
                await eventually(self.go_on.is_set)
        return "spent"

    def sleep(self) -> str:
        """Hold a thread that nobody can stop."""
        self._seen()
        self.threads += 1
        try:
            assert self.go_on.wait(PATIENCE)
            hangup.check()
        finally:
            self.threads -= 1
        return "slept"

    async def fail(self) -> str:
        """Raise what any tool may."""
        self._seen()
        raise ValueError("broken")

    @contextlib.asynccontextmanager
    async def session(self, transport: str) -> AsyncIterator[ClientSession]:
        """A session with the server over one of ``TRANSPORTS``, or ``http-json``."""
        if transport == "streams":
            async with self.streams() as (session, _):
                yield session
            return
        async with self.serving(json_response=transport == "http-json") as url:
            if transport == "http-legacy":
                async with (
                    streamable_http.streamable_http_client(url) as streams,
                    ClientSession(*streams) as session,
                ):
                    await session.initialize()
                    yield session
            else:
                async with Client(url) as client:
                    yield client.session

    @contextlib.asynccontextmanager
    async def streams(self) -> AsyncIterator[tuple[ClientSession, asyncio.Task[None]]]:
        """A session as over standard input and output, and the task that serves it."""
        low = self.server._lowlevel_server
        async with create_client_server_memory_streams() as (ours, theirs):
            options = low.create_initialization_options()
            serving = asyncio.create_task(low.run(*theirs, options))
            try:
                async with ClientSession(*ours) as session:
                    await session.initialize()
                    yield session, serving
            finally:
                for stream in ours:
                    await stream.aclose()
                await asyncio.wait([serving], timeout=PATIENCE)
                assert serving.done()

    @contextlib.asynccontextmanager
    async def serving(self, **options: Any) -> AsyncIterator[str]:
        """The URL of the server over HTTP."""
        served = Served(self.server.streamable_http_app(**options))
        await asyncio.to_thread(served.__enter__)
        try:
            yield f"{served.url}/mcp"
        finally:
            await asyncio.to_thread(served.__exit__, None, None, None)


async def told(
    session: ClientSession, tool: str, meta: Mapping[str, Any] | None, **arguments: Any
) -> Any:
    """Call a tool as a process of its own would, with this in its ``_meta``.

    Ours would take out what no run of ours has put there.
    """
    dispatcher: Any = session._dispatcher
    if "_write" not in vars(dispatcher):
        write = type(dispatcher)._write

        async def writing(message: Any, *args: Any) -> None:
            said = _SAID.get()
            if said and getattr(message, "method", "") == "tools/call":
                before = (message.params or {}).get("_meta") or {}
                message.params["_meta"] = {**before, **said}
            await write(dispatcher, message, *args)

        dispatcher._write = writing
    before = _SAID.set(meta)
    try:
        return await session.call_tool(tool, arguments)
    finally:
        _SAID.reset(before)


def text(result: Any) -> str:
    """What a tool has said."""
    return str(result.content[0].text)
