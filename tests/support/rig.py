"""The rig of the cases: a model, an agent on a real server, and clients that leave.

The model is the demo's, on the test's own event loop, and its log is the truth. The
agent runs under uvicorn in a thread with the real OpenAI client and its real
instrumentation. Clients are plain sockets.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING, Any, Protocol, Self

from openai import AsyncOpenAI
from opentelemetry.instrumentation.genai.openai import OpenAIInstrumentor
from starlette.applications import Starlette
from support.servers import Served
from support.telemetry import Telemetry, instrumented

from hangup.demo.brain import Script
from hangup.demo.model_server import ModelServer
from hangup.demo.sockets import hang_up
from hangup.servers.asgi import HangupMiddleware

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping

    from openai.types.chat import ChatCompletion
    from starlette.routing import BaseRoute

    class Listening(Protocol):
        """A server on loopback."""

        port: int


MODEL = "gpt-4o-mini"
IN_TIME = 1.0
"""Seconds after T0 in which every model connection must be closed."""
LONG = Script(tokens=400, input_tokens=20, rate=20, first_token=0.05)
"""An answer that takes 20 s."""
SHORT = Script(tokens=8, input_tokens=20, rate=200, first_token=0.01)


@contextlib.contextmanager
def traced(**options: Any) -> Iterator[Telemetry]:
    """As ``instrumented``, with the OpenAI client instrumented on the same provider."""
    # Stopping people who wait is what the tests do: no brake.
    with instrumented(**({"brake_share": 100} | options)) as telemetry:
        instrumentor = OpenAIInstrumentor()
        instrumentor.instrument(
            tracer_provider=telemetry.tracer_provider,
            meter_provider=telemetry.meter_provider,
        )
        try:
            yield telemetry
        finally:
            instrumentor.uninstrument()


class Agent:
    """What the handlers of an agent have at hand.

    Attributes:
        telemetry: Where hangup records.
        seen: A place for handlers to leave what the test asks about.
    """

    client: AsyncOpenAI

    def __init__(self, model: ModelServer, telemetry: Telemetry) -> None:
        self._model = model
        self.telemetry = telemetry
        self.seen: list[Any] = []

    async def ask(self, text: str = "Well?", **options: Any) -> ChatCompletion:
        """Make one model call that is not a stream."""
        completion: ChatCompletion = await self.client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": text}], **options
        )
        return completion

    async def pieces(self, **options: Any) -> AsyncIterator[str]:
        """Stream one model call; usage is asked for."""
        stream = await self.client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "Well?"}],
            stream=True,
            stream_options={"include_usage": True},
            **options,
        )
        async with stream:
            async for chunk in stream:
                if chunk.choices:
                    yield chunk.choices[0].delta.content or ""

    @contextlib.asynccontextmanager
    async def talking(self, _app: object = None) -> AsyncIterator[None]:
        """Keep a client open on the loop that serves."""
        self.client = AsyncOpenAI(
            base_url=self._model.base_url, api_key="test", max_retries=0
        )
        try:
            # The first call imports for a good part of a second; the cases have less.
            await self.client.models.list()
            assert self.client.chat.completions
            yield
        finally:
            await self.client.close()


class Rig:
    """A model and an agent that talks to it.

    Attributes:
        model: The model server; ``model.log`` is the truth.
        agent: The agent.
        telemetry: Where hangup records.
    """

    def __init__(self, model: ModelServer, telemetry: Telemetry) -> None:
        self.model = model
        self.telemetry = telemetry
        self.agent = Agent(model, telemetry)

    @contextlib.asynccontextmanager
    async def serving(
        self,
        *routes: BaseRoute,
        wrap: Callable[[Any], Any] = HangupMiddleware,
        host: str = "127.0.0.1",
        **options: Any,
    ) -> AsyncIterator[Served]:
        """Serve the routes under uvicorn, in ``wrap``."""
        app = Starlette(routes=routes, lifespan=self.agent.talking, **options)
        served = Served(wrap(app), host=host)
        await asyncio.to_thread(served.__enter__)
        try:
            yield served
        finally:
            await asyncio.to_thread(served.__exit__, None, None, None)

    async def idle(self, served: Served) -> None:
        """Wait until no request is being served."""
        await asyncio.to_thread(served.idle)

    async def closed_in_time(self, since: float, within: float = IN_TIME) -> None:
        """Wait until every model call is over; it was that long after ``since``."""
        await self.model.log.closed_count(self.model.log.opened)
        for call in self.model.log.calls:
            assert call.closed is not None
            assert call.closed - since <= within


@contextlib.asynccontextmanager
async def rig(script: Script = LONG, **options: Any) -> AsyncIterator[Rig]:
    """A model that answers by ``script``; options are for ``instrumented``."""
    with traced(**options) as telemetry:
        async with ModelServer(default=script) as model:
            yield Rig(model, telemetry)


class Caller:
    """A client on a plain socket that asks once, and may leave."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def asks(
        cls,
        served: Listening,
        path: str = "/",
        headers: Mapping[str, str] | None = None,
    ) -> Self:
        """Send a request."""
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        fields = {"Host": "agent", "Connection": "close", **(headers or {})}
        lines = [f"GET {path} HTTP/1.1", *(f"{k}: {v}" for k, v in fields.items())]
        writer.write(("\r\n".join(lines) + "\r\n\r\n").encode())
        await writer.drain()
        return cls(reader, writer)

    async def begins(self) -> None:
        """Wait for the first of the answer."""
        await self._reader.read(1)

    def leaves(self) -> float:
        """Hang up, and return when."""
        return hang_up(self._writer)

    async def answer(self) -> tuple[int, dict[str, str], bytes]:
        """Return status, headers and body; the server closes."""
        raw = await self._reader.read()
        self._writer.close()
        head, _, body = raw.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines)
        return int(first.split()[1]), headers, body

    async def json(self) -> Any:
        """Return the body of the answer, read as JSON."""
        return json.loads((await self.answer())[2])
