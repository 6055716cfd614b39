"""The server's side of one ASGI connection, driven by hand."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import hangup
from hangup.core.registry import RunObserver

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, MutableMapping

    from hangup.core.run import Run

    Message = MutableMapping[str, Any]
    Scope = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[Message]]
    Send = Callable[[Message], Awaitable[None]]

HTTP_DISCONNECT: dict[str, Any] = {"type": "http.disconnect"}

_TICKS = 20


async def ticks() -> None:
    """Let everything run that is ready to, without letting time pass."""
    for _ in range(_TICKS):
        await asyncio.sleep(0)


def http_scope(path: str = "/", method: str = "GET", **fields: str) -> dict[str, Any]:
    """An HTTP scope; fields are headers, with ``_`` for ``-``."""
    return {
        "type": "http",
        "http_version": "1.1",
        "method": method,
        "path": path,
        "root_path": "",
        "headers": headers(**fields),
    }


def socket_scope(path: str = "/ws", **fields: str) -> dict[str, Any]:
    """A WebSocket scope."""
    return {
        "type": "websocket",
        "http_version": "1.1",
        "path": path,
        "root_path": "",
        "headers": headers(**fields),
    }


def headers(**fields: str) -> list[tuple[bytes, bytes]]:
    """ASGI headers from keywords."""
    return [
        (name.replace("_", "-").encode(), value.encode())
        for name, value in fields.items()
    ]


def body(data: bytes = b"", *, more: bool = False) -> dict[str, Any]:
    """A request body message."""
    return {"type": "http.request", "body": data, "more_body": more}


def start(status: int = 200, **fields: str) -> dict[str, Any]:
    """A response start message."""
    return {
        "type": "http.response.start",
        "status": status,
        "headers": headers(**fields),
    }


def chunk(data: bytes = b"", *, more: bool = False) -> dict[str, Any]:
    """A response body message."""
    return {"type": "http.response.body", "body": data, "more_body": more}


def spend() -> Run:
    """Make a spending call, as the span layer reports one; return the run."""
    run = hangup.current_run()
    assert run is not None
    run.check()
    return run


async def reply(send: Send, status: int = 200) -> None:
    """Send a whole response."""
    await send(start(status))
    await send(chunk(b"done"))


async def serve(app: Any, scope: Scope, *messages: Message) -> Peer:
    """Serve one connection to its end."""
    peer = Peer(*messages)
    await app(scope, peer.receive, peer.send)
    return peer


class Peer:
    """A server whose ``receive`` gives what the test feeds it, and no more.

    Attributes:
        sent: What arrived at the server's ``send``, in order.
        asked: How often ``receive`` was called.
        waiting: How many calls of ``receive`` wait right now.
        most_waiting: The most that ever waited at a time.
    """

    def __init__(self, *messages: Message | Exception) -> None:
        self.sent: list[Message] = []
        self.asked = 0
        self.waiting = 0
        self.most_waiting = 0
        self._queue: asyncio.Queue[Message | Exception] = asyncio.Queue()
        self._said = asyncio.Condition()
        self.feed(*messages)

    def feed(self, *messages: Message | Exception) -> None:
        """Let ``receive`` return these, or raise them."""
        for message in messages:
            self._queue.put_nowait(message)

    @property
    def unread(self) -> int:
        """How many messages nobody has asked for yet."""
        return self._queue.qsize()

    async def receive(self) -> Message:
        """The ASGI callable."""
        self.asked += 1
        self.waiting += 1
        self.most_waiting = max(self.most_waiting, self.waiting)
        try:
            message = await self._queue.get()
        finally:
            self.waiting -= 1
        if isinstance(message, Exception):
            raise message
        return message

    async def send(self, message: Message) -> None:
        """The ASGI callable."""
        async with self._said:
            self.sent.append(message)
            self._said.notify_all()

    async def said(self, count: int) -> None:
        """Wait until that many messages were sent."""
        async with self._said:
            await self._said.wait_for(lambda: len(self.sent) >= count)

    @property
    def status(self) -> int:
        """The status of the response."""
        status: int = self.sent[0]["status"]
        return status

    def header(self, name: str) -> str | None:
        """A header of the response."""
        found = dict(self.sent[0]["headers"]).get(name.encode())
        return None if found is None else bytes(found).decode()


class ManualClock:
    """Time moves by ``advance`` only."""

    def __init__(self, now: float = 1_000.0) -> None:
        self.now = now
        self.timers: list[_Timer] = []

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now + 1_700_000_000.0

    def call_at(self, when: float, callback: Callable[[], None]) -> _Timer:
        timer = _Timer(when, callback)
        self.timers.append(timer)
        return timer

    def advance(self, seconds: float) -> None:
        """Move on, and run what is due by then."""
        self.now += seconds
        due = [timer for timer in self.timers if timer.when <= self.now]
        self.timers = [timer for timer in self.timers if timer.when > self.now]
        for timer in due:
            timer.fire()


class _Timer:
    def __init__(self, when: float, callback: Callable[[], None]) -> None:
        self.when = when
        self._callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self._callback = None

    def fire(self) -> None:
        if self._callback is not None:
            self._callback()


class Journal(RunObserver):
    """What observers hear of runs, in order, as (event, run name, more)."""

    def __init__(self) -> None:
        self.events: list[tuple[str, ...]] = []
        self.runs: list[Run] = []

    def started(self, run: Run) -> None:
        self.runs.append(run)
        self.events.append(("started", run.name))

    def abandoned(self, run: Run) -> None:
        assert run.cause is not None
        self.events.append(("abandoned", run.name, run.cause.value))

    def delivered(self, run: Run) -> None:
        self.events.append(("delivered", run.name))

    @property
    def fates(self) -> list[tuple[str, ...]]:
        """The events without the starts and the names."""
        return [
            (event, *more) for event, _name, *more in self.events if event != "started"
        ]
