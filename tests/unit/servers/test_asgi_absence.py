"""A client that leaves under grace or finish: what its application gets to know."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from support.asgi import (
    HTTP_DISCONNECT,
    Peer,
    body,
    chunk,
    http_scope,
    reply,
    socket_scope,
    spend,
    start,
    ticks,
)

import hangup
from hangup.servers._asgi_terms import Terms
from hangup.servers.asgi import HangupMiddleware

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from support.asgi import Journal, ManualClock, Message, Receive, Scope, Send

    from hangup.core.run import Run

    App = Callable[[Scope, Receive, Send], Awaitable[None]]


def served(app: App, clock: ManualClock, peer: Peer, **options: Any) -> Any:
    """Serve one request with ten seconds of grace, on a clock moved by hand."""
    kind = options.pop("kind", None)
    terms: dict[str, Any] = {"on_disconnect": "grace", "grace": 10.0} | options
    middleware = HangupMiddleware(app)
    middleware._terms = Terms(**terms, clock=clock)
    scope = socket_scope() if kind == "socket" else http_scope()
    return asyncio.create_task(middleware(scope, peer.receive, peer.send))


class Agent:
    """An application that spends, and then does what the test lets it."""

    def __init__(self, *, streams: bool = False) -> None:
        self.go = asyncio.Event()
        self.run: Run | None = None
        self.heard: list[Message] = []
        self.streams = streams

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.run = spend()
        listening = asyncio.ensure_future(self.listen(receive))
        try:
            if self.streams:
                await send(start())
                await send(chunk(b"one", more=True))
            await self.go.wait()
            spend()
            if self.streams:
                await send(chunk(b"two"))
            else:
                await reply(send)
            await ticks()
        finally:
            listening.cancel()

    async def listen(self, receive: Receive) -> None:
        """Listen for the client as Starlette's streaming response does."""
        while not self.heard:
            message = await receive()
            if message["type"] == "http.disconnect":
                self.heard.append(message)


def test_nobody_comes_back(journal: Journal, clock: ManualClock) -> None:
    async def test() -> None:
        agent, peer = Agent(), Peer(body())
        serving = served(agent, clock, peer)
        await ticks()
        clock.advance(1)
        peer.feed(HTTP_DISCONNECT)
        await ticks()
        left = clock.now
        clock.advance(9)
        await ticks()
        assert (serving.done(), agent.heard) == (False, [])
        clock.advance(1)
        await serving
        assert peer.sent == []
        assert agent.run is not None
        assert agent.run.abandonment is not None
        assert agent.run.abandonment.at == left

    asyncio.run(test())
    assert journal.fates == [("abandoned", "disconnect")]
    assert journal.runs[0].caller == "gone"


@pytest.mark.parametrize("streams", [False, True])
def test_somebody_comes_back(
    journal: Journal, clock: ManualClock, *, streams: bool
) -> None:
    async def test() -> None:
        agent, peer = Agent(streams=streams), Peer(body(), HTTP_DISCONNECT)
        serving = served(agent, clock, peer)
        await ticks()
        assert agent.run is not None
        clock.advance(9)
        found = hangup.find_run(agent.run.id)
        assert found is agent.run
        assert found.reattach()
        clock.advance(60)
        await ticks()
        assert agent.heard == []
        agent.go.set()
        await serving
        # Told only once it has said all it had to say.
        assert agent.heard == [HTTP_DISCONNECT]
        assert not found.reattach()

    asyncio.run(test())
    assert journal.fates == [("delivered",)]
    assert journal.runs[0].caller == "connected"


@pytest.mark.parametrize("streams", [False, True])
def test_an_answer_that_ends_while_nobody_is_there_reached_nobody(
    journal: Journal, clock: ManualClock, *, streams: bool
) -> None:
    async def test() -> None:
        agent, peer = Agent(streams=streams), Peer(body(), HTTP_DISCONNECT)
        serving = served(agent, clock, peer)
        await ticks()
        left = clock.now
        clock.advance(5)
        agent.go.set()
        await serving
        assert agent.run is not None
        assert agent.run.abandonment is not None
        assert agent.run.abandonment.at == left

    asyncio.run(test())
    assert journal.fates == [("abandoned", "disconnect")]


def test_who_comes_back_after_the_last_byte_and_before_the_end_has_it(
    journal: Journal, clock: ManualClock
) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        run = spend()
        await ticks()
        await reply(send)
        assert run.reattach()

    async def test() -> None:
        await served(app, clock, Peer(body(), HTTP_DISCONNECT))

    asyncio.run(test())
    assert journal.fates == [("delivered",)]


def test_who_comes_back_gets_the_result_another_way_than_the_response(
    journal: Journal, clock: ManualClock
) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        run = spend()
        await ticks()
        assert run.reattach()

    async def test() -> None:
        await served(app, clock, Peer(body(), HTTP_DISCONNECT))

    asyncio.run(test())
    assert journal.fates == [("delivered",)]


@pytest.mark.parametrize("meant", ["abandon", "grace", "finish"])
def test_after_a_stored_result_a_disconnect_is_nothing(
    journal: Journal, clock: ManualClock, meant: str
) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        spend().deliver()
        await ticks()
        hangup.check()
        await reply(send)

    async def test() -> None:
        peer = Peer(body(), HTTP_DISCONNECT)
        await served(app, clock, peer, on_disconnect=meant)
        clock.advance(60)

    asyncio.run(test())
    assert journal.fates == [("delivered",)]


@pytest.mark.parametrize("streams", [False, True])
def test_finish_goes_on_to_its_end(
    journal: Journal, clock: ManualClock, *, streams: bool
) -> None:
    async def test() -> None:
        agent, peer = Agent(streams=streams), Peer(body(), HTTP_DISCONNECT)
        serving = served(agent, clock, peer, on_disconnect="finish")
        await ticks()
        clock.advance(1_000)
        await ticks()
        assert agent.heard == []
        agent.go.set()
        await serving

    asyncio.run(test())
    assert journal.fates == [("delivered",)]
    assert journal.runs[0].caller == "gone"


def test_finish_that_gives_up_because_its_client_left_finished_nothing(
    journal: Journal, clock: ManualClock
) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        spend()
        while (await receive())["type"] != "http.disconnect":
            pass

    async def test() -> None:
        # In observe the application hears of its client, and may cut itself short.
        peer = Peer(body(), HTTP_DISCONNECT)
        await served(app, clock, peer, on_disconnect="finish", mode="observe")

    asyncio.run(test())
    assert journal.fates == [("abandoned", "disconnect")]


@pytest.mark.parametrize(("mode", "withheld"), [("observe", False), ("refuse", True)])
def test_only_observe_interferes_with_nothing(
    journal: Journal, clock: ManualClock, mode: str, *, withheld: bool
) -> None:
    async def test() -> None:
        agent, peer = Agent(), Peer(body(), HTTP_DISCONNECT)
        serving = served(agent, clock, peer, mode=mode)
        await ticks()
        assert agent.heard == ([] if withheld else [HTTP_DISCONNECT])
        assert agent.run is not None
        assert agent.run.reattach()
        agent.go.set()
        await serving

    asyncio.run(test())
    assert journal.fates == [("delivered",)]


def test_at_the_end_of_the_grace_the_application_hears_of_it(
    journal: Journal, clock: ManualClock
) -> None:
    async def test() -> None:
        agent, peer = Agent(), Peer(body(), HTTP_DISCONNECT)
        serving = served(agent, clock, peer, mode="refuse")
        await ticks()
        assert agent.heard == []
        clock.advance(10)
        await ticks()
        assert agent.heard == [HTTP_DISCONNECT]
        agent.go.set()
        await serving

    asyncio.run(test())
    assert journal.fates == [("abandoned", "disconnect")]


class Broken(Peer):
    """A server that fails on what is sent to a client that left (ASGI 2.4)."""

    broken = False

    async def send(self, message: Message) -> None:
        if self.broken:
            raise OSError
        await super().send(message)


@pytest.mark.parametrize("meant", ["grace", "finish"])
@pytest.mark.parametrize("told", [False, True])
def test_the_application_writes_into_nothing(
    journal: Journal, clock: ManualClock, meant: str, *, told: bool
) -> None:
    async def test() -> None:
        agent, peer = Agent(streams=True), Broken(body())
        serving = served(agent, clock, peer, on_disconnect=meant)
        await ticks()
        peer.broken = True
        if told:
            peer.feed(HTTP_DISCONNECT)
            await ticks()
        agent.go.set()
        await serving

    asyncio.run(test())
    fates = {"grace": ("abandoned", "disconnect"), "finish": ("delivered",)}
    assert journal.fates == [fates[meant]]
    assert journal.runs[0].caller == "gone"


@pytest.mark.parametrize("meant", ["abandon", "grace", "finish"])
@pytest.mark.parametrize("told", ["by receive", "by send"])
def test_who_is_back_before_the_old_connection_is_known_to_be_gone_is_back(
    journal: Journal, clock: ManualClock, meant: str, told: str
) -> None:
    async def test() -> None:
        agent, peer = Agent(streams=True), Broken(body())
        serving = served(agent, clock, peer, on_disconnect=meant)
        await ticks()
        assert agent.run is not None
        assert agent.run.reattach()
        if told == "by receive":
            peer.feed(HTTP_DISCONNECT)
        peer.broken = True
        await ticks()
        clock.advance(60)
        agent.go.set()
        await serving

    asyncio.run(test())
    assert journal.fates == [("delivered",)]
    assert journal.runs[0].caller == "connected"


def test_under_abandon_the_servers_error_is_the_applications(
    journal: Journal, clock: ManualClock
) -> None:
    async def test() -> None:
        agent, peer = Agent(streams=True), Broken(body())
        serving = served(agent, clock, peer, on_disconnect="abandon", mode="observe")
        await ticks()
        peer.broken = True
        agent.go.set()
        with pytest.raises(OSError, match=r"^$"):
            await serving

    asyncio.run(test())
    assert journal.fates == [("abandoned", "disconnect")]


def test_a_deadline_in_the_grace_is_a_deadline(
    journal: Journal, clock: ManualClock
) -> None:
    async def test() -> None:
        agent, peer = Agent(), Peer(body(), HTTP_DISCONNECT)
        serving = served(agent, clock, peer, budget=5)
        await ticks()
        clock.advance(5)
        await serving

    asyncio.run(test())
    assert journal.fates == [("abandoned", "deadline")]


def test_a_websocket_handler_hears_of_its_client_when_it_asks(
    journal: Journal, clock: ManualClock
) -> None:
    heard: list[Message] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        run = spend()
        await ticks()
        assert run.caller == "gone"
        heard.append(await receive())
        await send({"type": "websocket.send", "text": "into nothing"})
        assert run.reattach()

    async def test() -> None:
        peer = Broken({"type": "websocket.disconnect", "code": 1001})
        peer.broken = True
        await served(app, clock, peer, kind="socket")

    asyncio.run(test())
    assert [message["type"] for message in heard] == ["websocket.disconnect"]
    assert journal.fates == [("delivered",)]


@pytest.mark.parametrize(
    ("meant", "fate"),
    [("grace", ("abandoned", "disconnect")), ("finish", ("delivered",))],
)
def test_a_websocket_handler_that_ends_with_nobody_there(
    journal: Journal, clock: ManualClock, meant: str, fate: tuple[str, ...]
) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        spend()
        await ticks()
        await receive()

    async def test() -> None:
        peer = Peer({"type": "websocket.disconnect", "code": 1001})
        await served(app, clock, peer, kind="socket", on_disconnect=meant)

    asyncio.run(test())
    assert journal.fates == [fate]
