"""What the caller of a stopped run is told, when, and what never gets out."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest
from support.asgi import (
    HTTP_DISCONNECT,
    Peer,
    body,
    chunk,
    http_scope,
    spend,
    start,
    ticks,
)

import hangup
from hangup.servers._asgi_respond import UNFINISHED
from hangup.servers._asgi_terms import Terms
from hangup.servers.asgi import HangupMiddleware

if TYPE_CHECKING:
    from support.asgi import Journal, ManualClock, Message, Receive, Scope, Send

    from hangup.core.run import Run


class Stubborn:
    """An application that spends, waits to be stopped, and answers all the same."""

    def __init__(self, *first: Message) -> None:
        self.first = first
        self.run: Run | None = None
        self.stopped = asyncio.Event()
        self.let_go = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.run = spend()
        for message in self.first:
            await send(message)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.stopped.set()
            await self.let_go.wait()
            if not self.first:
                await send(start())
            await send(chunk(b"too late"))
            raise


CAUSES = [
    ("deadline", 504, None),
    ("killed", 409, None),
    ("superseded", 409, None),
    ("shutdown", 503, "1"),
]


@pytest.mark.parametrize(("cause", "status", "retry"), CAUSES)
def test_before_the_first_byte_the_cause_is_answered_at_once(
    journal: Journal, cause: str, status: int, retry: str | None
) -> None:
    async def test() -> None:
        app = Stubborn()
        peer = Peer(body())
        serving = asyncio.create_task(
            HangupMiddleware(app)(http_scope(), peer.receive, peer.send)
        )
        await ticks()
        assert app.run is not None
        app.run.cancel(cause)
        await peer.said(2)
        await app.stopped.wait()
        # Out before the application has unwound, and nothing of it after.
        assert not serving.done()
        answer = list(peer.sent)
        app.let_go.set()
        await serving
        assert peer.sent == answer
        assert peer.status == status
        assert peer.header("hangup-cause") == cause
        assert peer.header("retry-after") == retry
        content = peer.sent[1]["body"]
        assert peer.header("content-length") == str(len(content))
        assert json.loads(content)["error"] == cause
        assert app.run.id.encode() not in content
        assert peer.sent[1]["more_body"] is False

    asyncio.run(test())
    assert journal.fates == [("abandoned", cause)]


def test_the_deadline_itself_answers_504(journal: Journal, clock: ManualClock) -> None:
    async def test() -> None:
        app = Stubborn()
        app.let_go.set()
        peer = Peer(body())
        middleware = HangupMiddleware(app)
        middleware._terms = Terms(budget=30, clock=clock)
        serving = asyncio.create_task(middleware(http_scope(), peer.receive, peer.send))
        await ticks()
        clock.advance(29.9)
        await ticks()
        assert peer.sent == []
        clock.advance(0.1)
        await serving
        assert peer.status == 504

    asyncio.run(test())
    assert journal.fates == [("abandoned", "deadline")]
    assert journal.runs[0].caller == "connected"


@pytest.mark.parametrize("cause", ["deadline", "killed", "disconnect"])
def test_after_the_first_byte_the_response_is_never_ended(
    journal: Journal, cause: str
) -> None:
    async def test() -> None:
        begun = [start(), chunk(b"1", more=True)]
        app = Stubborn(*begun)
        app.let_go.set()
        peer = Peer(body())
        serving = asyncio.create_task(
            HangupMiddleware(app)(http_scope(), peer.receive, peer.send)
        )
        await ticks()
        assert app.run is not None
        app.run.cancel(cause)
        await serving
        assert peer.sent[:2] == begun
        assert [message for message in peer.sent[2:] if message != UNFINISHED] == []

    asyncio.run(test())
    assert journal.fates == [("abandoned", cause)]


def test_a_client_that_does_not_read_does_not_keep_the_connection() -> None:
    async def test() -> None:
        app = Stubborn(start(), chunk(b"1", more=True))
        app.let_go.set()
        peer = Peer(body())

        async def send(message: Message) -> None:
            if message == UNFINISHED:
                await asyncio.Event().wait()
            await peer.send(message)

        serving = asyncio.create_task(
            HangupMiddleware(app)(http_scope(), peer.receive, send)
        )
        await ticks()
        assert app.run is not None
        app.run.cancel("deadline")
        await asyncio.wait_for(serving, 10)

    asyncio.run(test())


def test_an_answer_the_server_will_not_take_makes_no_noise() -> None:
    reported: list[dict[str, Any]] = []

    async def test() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _loop, report: reported.append(report))
        app = Stubborn()
        app.let_go.set()
        peer = Peer(body())

        async def send(message: Message) -> None:
            raise OSError(message)

        serving = asyncio.create_task(
            HangupMiddleware(app)(http_scope(), peer.receive, send)
        )
        await ticks()
        assert app.run is not None
        app.run.cancel("killed")
        await serving

    asyncio.run(test())
    assert reported == []


def test_to_a_client_that_left_nothing_is_sent(journal: Journal) -> None:
    async def test() -> None:
        app = Stubborn()
        app.let_go.set()
        peer = Peer(body(), HTTP_DISCONNECT)
        await HangupMiddleware(app)(http_scope(), peer.receive, peer.send)
        assert peer.sent == []

    asyncio.run(test())
    assert journal.fates == [("abandoned", "disconnect")]


def test_a_refused_call_ends_in_504_and_never_reaches_the_server(
    journal: Journal, clock: ManualClock
) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        clock.advance(31)
        spend()
        raise AssertionError

    async def test() -> None:
        peer = Peer(body())
        middleware = HangupMiddleware(app)
        middleware._terms = Terms(budget=30, clock=clock)
        await middleware(http_scope(), peer.receive, peer.send)
        assert peer.status == 504

    asyncio.run(test())
    assert journal.fates == [("abandoned", "deadline")]


def test_an_answer_that_came_too_late_is_not_sent(
    journal: Journal, clock: ManualClock
) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        spend()
        clock.now += 31  # no timer has run yet
        await send(start())
        await send(chunk(b"late"))

    async def test() -> None:
        peer = Peer(body())
        middleware = HangupMiddleware(app)
        middleware._terms = Terms(budget=30, clock=clock)
        await middleware(http_scope(), peer.receive, peer.send)
        assert peer.status == 504
        assert len(peer.sent) == 2

    asyncio.run(test())
    assert journal.fates == [("abandoned", "deadline")]


def test_an_answer_the_server_took_in_time_stands(
    journal: Journal, clock: ManualClock
) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        spend()
        await send(start())
        await send(chunk(b"just"))

    async def test() -> None:
        peer = Peer(body())

        async def send(message: Message) -> None:
            await peer.send(message)
            if len(peer.sent) == 2:
                clock.now += 31  # after the server had it, and no timer has run yet

        middleware = HangupMiddleware(app)
        middleware._terms = Terms(budget=30, clock=clock)
        await middleware(http_scope(), peer.receive, send)
        assert peer.sent == [start(), chunk(b"just")]

    asyncio.run(test())
    assert journal.fates == [("delivered",)]


def test_in_observe_a_late_answer_is_the_answer(
    journal: Journal, clock: ManualClock
) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        spend()
        clock.advance(31)
        spend()
        await ticks()
        await send(start())
        await send(chunk(b"late"))

    async def test() -> None:
        peer = Peer(body())
        middleware = HangupMiddleware(app)
        middleware._terms = Terms(budget=30, mode="observe", clock=clock)
        await middleware(http_scope(), peer.receive, peer.send)
        assert peer.sent == [start(), chunk(b"late")]

    asyncio.run(test())
    assert journal.fates == [("delivered",)]
    run = journal.runs[0]
    assert run.delivered_at is not None
    assert run.delivered_at > run.deadline.at


def test_in_refuse_what_is_in_flight_is_answered_by_the_application(
    journal: Journal, clock: ManualClock
) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        spend()
        clock.advance(31)
        await ticks()
        await send(start())
        await send(chunk(b"in flight"))

    async def test() -> None:
        peer = Peer(body())
        middleware = HangupMiddleware(app)
        middleware._terms = Terms(budget=30, mode="refuse", clock=clock)
        await middleware(http_scope(), peer.receive, peer.send)
        assert peer.sent == [start(), chunk(b"in flight")]

    asyncio.run(test())
    assert journal.fates == [("delivered",)]


@pytest.mark.parametrize("how", ["stop", "framework"])
def test_in_refuse_a_refused_call_is_answered_by_its_cause(
    journal: Journal, clock: ManualClock, how: str
) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        run = spend()
        clock.advance(31)
        try:
            spend()
        except hangup.Stop:
            if how == "stop":
                raise
            # What a framework makes of the ordinary error that a thread gets.
            await send(start(500))
            await send(chunk(b"Internal Server Error"))
            raise run.error() from None

    async def test() -> None:
        peer = Peer(body())
        middleware = HangupMiddleware(app)
        middleware._terms = Terms(budget=30, mode="refuse", clock=clock)
        await middleware(http_scope(), peer.receive, peer.send)
        assert peer.status == 504
        assert len(peer.sent) == 2

    asyncio.run(test())
    assert journal.fates == [("abandoned", "deadline")]


def test_groups_of_stops_and_framework_residue_end_here(journal: Journal) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        run = spend()
        run.cancel("killed")
        try:
            spend()
        except hangup.Stop as stop:
            residue = RuntimeError("No response returned.")
            raise BaseExceptionGroup("tasks", [residue, stop]) from None

    async def test() -> None:
        peer = Peer(body())
        await HangupMiddleware(app)(http_scope(), peer.receive, peer.send)
        assert peer.status == 409

    asyncio.run(test())
    assert journal.fates == [("abandoned", "killed")]


def test_an_uncaught_error_of_a_run_in_the_handler_is_answered_too(
    clock: ManualClock,
) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        async with hangup.run(budget=1, clock=clock):
            clock.advance(2)
            spend()

    async def test() -> None:
        peer = Peer(body())
        middleware = HangupMiddleware(app)
        middleware._terms = Terms(clock=clock)
        await middleware(http_scope(), peer.receive, peer.send)
        assert peer.status == 504

    asyncio.run(test())


def test_a_group_with_a_real_error_reaches_the_server() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        run = spend()
        run.cancel("killed")
        try:
            spend()
        except hangup.Stop as stop:
            fault = ValueError("the application's")
            raise BaseExceptionGroup("tasks", [fault, stop]) from None

    async def test() -> None:
        peer = Peer(body())
        with pytest.raises(BaseExceptionGroup):
            await HangupMiddleware(app)(http_scope(), peer.receive, peer.send)

    asyncio.run(test())
