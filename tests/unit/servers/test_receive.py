"""The reader hands everything on and sees the client leave."""

from __future__ import annotations

import asyncio
import contextvars
import sys
from typing import TYPE_CHECKING

import pytest
from support.asgi import HTTP_DISCONNECT, body, http_scope, socket_scope, ticks
from support.reading import Rig, on_a_loop, text

from hangup.servers._asgi_receive import (
    MESSAGES_AHEAD,
    Reader,
)

if TYPE_CHECKING:
    from support.asgi import Message


def test_before_watching_a_receive_goes_straight_to_the_server() -> None:
    async def test() -> None:
        message = body(b"hello")
        rig = Rig(None, message)
        tasks = asyncio.all_tasks()
        assert rig.peer.asked == 0
        assert await rig.reader.receive() is message
        assert rig.peer.asked == 1
        assert asyncio.all_tasks() == tasks
        await rig.reader.close()

    on_a_loop(test)


def test_a_bodyless_request_is_watched_though_the_application_never_receives() -> None:
    async def test() -> None:
        rig = Rig(None, body())
        await rig.watch()
        assert rig.peer.waiting == 1
        assert rig.gone == []
        rig.peer.feed(HTTP_DISCONNECT)
        await ticks()
        assert rig.gone == [HTTP_DISCONNECT]
        assert rig.reader.gone
        await rig.reader.close()

    on_a_loop(test)


def test_messages_read_ahead_come_unchanged_and_in_order() -> None:
    async def test() -> None:
        messages = [body(bytes([n]), more=n < 4) for n in range(5)]
        rig = Rig(http_scope(content_length="5"), *messages, HTTP_DISCONNECT)
        await rig.watch()
        assert rig.gone == [HTTP_DISCONNECT]
        for message in messages:
            assert await rig.reader.receive() is message
        assert await rig.reader.receive() is HTTP_DISCONNECT
        await rig.reader.close()

    on_a_loop(test)


def test_cancelling_a_receive_that_waits_loses_no_message() -> None:
    async def test() -> None:
        rig = Rig(socket_scope())
        await rig.watch()
        waiting = asyncio.create_task(rig.reader.receive())
        await ticks()
        # Both in one turn: the message is there, and the one who waits is cancelled.
        rig.peer.feed(text(1))
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert await rig.reader.receive() == text(1)
        await rig.reader.close()

    on_a_loop(test)


def test_a_receive_cancelled_in_the_server_is_taken_over_by_the_watch() -> None:
    async def test() -> None:
        rig = Rig(None, body())
        await rig.reader.receive()
        waiting = asyncio.create_task(rig.reader.receive())
        await ticks()
        tasks = asyncio.all_tasks()
        await rig.watch()
        assert asyncio.all_tasks() == tasks, "one who waits is enough"
        waiting.cancel()
        await ticks()
        assert rig.peer.waiting == 1
        rig.peer.feed(HTTP_DISCONNECT)
        await ticks()
        assert rig.gone == [HTTP_DISCONNECT]
        await rig.reader.close()

    on_a_loop(test)


def test_a_disconnect_that_the_application_itself_receives_is_noticed() -> None:
    async def test() -> None:
        rig = Rig(None, HTTP_DISCONNECT)
        assert await rig.reader.receive() is HTTP_DISCONNECT
        assert rig.gone == [HTTP_DISCONNECT]
        await rig.reader.close()

    on_a_loop(test)


def test_the_server_is_never_asked_twice_at_a_time() -> None:
    async def test() -> None:
        rig = Rig(socket_scope())
        waiting = [asyncio.create_task(rig.reader.receive()) for _ in range(3)]
        await ticks()
        await rig.watch()
        rig.peer.feed(text(1), text(2), text(3))
        got = [message["text"] for message in await asyncio.gather(*waiting)]
        assert sorted(got) == ["1", "2", "3"]
        assert rig.peer.most_waiting == 1
        await rig.reader.close()

    on_a_loop(test)


def test_every_receive_after_the_disconnect_returns_it_again_without_waiting() -> None:
    async def test() -> None:
        rig = Rig(None, body(), HTTP_DISCONNECT, HTTP_DISCONNECT)
        await rig.watch()
        await rig.reader.receive()
        waiting = [asyncio.create_task(rig.reader.receive()) for _ in range(3)]
        assert await asyncio.gather(*waiting) == [HTTP_DISCONNECT] * 3
        # As Starlette's is_disconnected polls: one step, and no second.
        poll = rig.reader.receive()
        with pytest.raises(StopIteration) as found:
            poll.send(None)
        assert found.value.value is HTTP_DISCONNECT
        assert rig.gone == [HTTP_DISCONNECT]
        await rig.reader.close()

    on_a_loop(test)


@pytest.mark.parametrize("watched", [False, True])
def test_an_error_of_the_server_reaches_the_application_in_its_place(
    *, watched: bool
) -> None:
    async def test() -> None:
        fault = OSError("the server's")
        rig = Rig(socket_scope(), text(1), fault, text(2))
        if watched:
            await rig.watch()
        assert await rig.reader.receive() == text(1)
        with pytest.raises(OSError, match="the server's") as raised:
            await rig.reader.receive()
        assert raised.value is fault
        assert await rig.reader.receive() == text(2)
        assert rig.gone == []
        await rig.reader.close()

    on_a_loop(test)


def test_an_error_that_nobody_receives_makes_no_noise() -> None:
    async def test() -> None:
        rig = Rig(None, OSError("the server's"))
        await rig.watch()
        await rig.reader.close()

    on_a_loop(test)


def test_closing_ends_the_watch_and_releases_those_who_wait() -> None:
    async def test() -> None:
        rig = Rig(None, body())
        await rig.watch()
        await rig.reader.receive()
        waiting = asyncio.create_task(rig.reader.receive())
        await ticks()
        assert rig.reader.wanted
        await rig.reader.close()
        await rig.reader.close()
        rig.peer.feed(HTTP_DISCONNECT)
        assert await waiting is HTTP_DISCONNECT

    on_a_loop(test)


def test_closing_while_room_is_awaited_ends_the_watch() -> None:
    async def test() -> None:
        rig = Rig(socket_scope(), *[text(n) for n in range(MESSAGES_AHEAD + 1)])
        await rig.watch()
        assert not rig.reader.wanted
        await rig.reader.close()

    on_a_loop(test)


def test_watching_after_the_end_starts_nothing() -> None:
    async def test() -> None:
        rig = Rig(None, body())
        await rig.reader.close()
        await rig.watch()
        assert rig.peer.asked == 0

    on_a_loop(test)


def test_the_watch_runs_in_the_context_it_was_given() -> None:
    place: contextvars.ContextVar[str] = contextvars.ContextVar("place", default="out")

    async def test() -> None:
        seen: list[str] = []

        async def receive() -> Message:
            seen.append(place.get())
            return HTTP_DISCONNECT

        outside = contextvars.copy_context()
        reader = Reader(receive, http_scope(), lambda _message: None, outside)
        place.set("in the run")
        reader.watch()
        await ticks()
        assert seen == ["out"]
        await reader.close()

    on_a_loop(test)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks are new in 3.12")
def test_eager_tasks_change_nothing() -> None:
    async def test() -> None:
        loop = asyncio.get_running_loop()
        loop.set_task_factory(getattr(asyncio, "eager_task_factory"))  # noqa: B009
        try:
            rig = Rig(None, body(), HTTP_DISCONNECT)
            rig.reader.watch()
            assert rig.gone == [HTTP_DISCONNECT]
            assert await rig.reader.receive() == body()
            assert await rig.reader.receive() is HTTP_DISCONNECT
            await rig.reader.close()
        finally:
            loop.set_task_factory(None)

    on_a_loop(test)
