"""How far the reader reads ahead of the application, and what it waits for."""

from __future__ import annotations

import contextvars
from typing import TYPE_CHECKING

import pytest
from support.asgi import HTTP_DISCONNECT, body, http_scope, socket_scope, ticks
from support.reading import WS_CLOSE, Rig, on_a_loop, text

from hangup.servers._asgi_receive import (
    BODY_AHEAD,
    MESSAGE_BYTES_AHEAD,
    MESSAGES_AHEAD,
    Reader,
)

if TYPE_CHECKING:
    from support.asgi import Message, Scope


def test_a_body_of_64_kib_is_read_ahead() -> None:
    async def test() -> None:
        rig = Rig(
            http_scope(content_length=str(BODY_AHEAD)),
            body(bytes(BODY_AHEAD - 1), more=True),
            body(b"x"),
            HTTP_DISCONNECT,
        )
        await rig.watch()
        assert rig.gone == [HTTP_DISCONNECT]
        await rig.reader.close()

    on_a_loop(test)


def test_a_longer_body_is_not_read_ahead_and_watched_once_the_application_has_it() -> (
    None
):
    async def test() -> None:
        rig = Rig(
            http_scope(content_length=str(BODY_AHEAD + 1)),
            body(bytes(BODY_AHEAD), more=True),
            body(b"x"),
        )
        await rig.watch()
        assert rig.peer.asked == 0
        await rig.reader.receive()
        await ticks()
        assert rig.peer.unread == 1
        await rig.reader.receive()
        await ticks()
        assert rig.peer.waiting == 1
        rig.peer.feed(HTTP_DISCONNECT)
        await ticks()
        assert rig.gone == [HTTP_DISCONNECT]
        await rig.reader.close()

    on_a_loop(test)


@pytest.mark.parametrize(
    "scope",
    [
        http_scope(transfer_encoding="chunked"),
        http_scope(transfer_encoding="chunked", content_length="5"),
        {**http_scope(), "http_version": "2"},
    ],
    ids=["chunked", "both", "http2"],
)
def test_a_body_of_unknown_length_is_read_ahead_up_to_64_kib(scope: Scope) -> None:
    async def test() -> None:
        half = bytes(BODY_AHEAD // 2)
        pieces = [body(half, more=True) for _ in range(4)]
        rig = Rig(scope, *pieces, body(), HTTP_DISCONNECT)
        await rig.watch()
        assert rig.peer.unread == 4
        assert rig.gone == []
        assert await rig.reader.receive() is pieces[0]
        await ticks()
        assert rig.peer.unread == 3
        for piece in pieces[1:]:
            assert await rig.reader.receive() is piece
        await ticks()
        assert rig.gone == [HTTP_DISCONNECT]
        await rig.reader.close()

    on_a_loop(test)


def test_with_expect_100_continue_nothing_is_read_before_the_application_reads() -> (
    None
):
    async def test() -> None:
        scope = http_scope(expect="100-Continue", content_length="5")
        rig = Rig(scope, body(b"hello"))
        await rig.watch()
        assert rig.peer.asked == 0
        assert await rig.reader.receive() == body(b"hello")
        await ticks()
        assert rig.peer.waiting == 1
        rig.peer.feed(HTTP_DISCONNECT)
        await ticks()
        assert rig.gone == [HTTP_DISCONNECT]
        await rig.reader.close()

    on_a_loop(test)


def test_at_most_16_websocket_messages_are_read_ahead() -> None:
    async def test() -> None:
        messages = [text(n) for n in range(20)]
        rig = Rig(socket_scope(), *messages, WS_CLOSE)
        await rig.watch()
        assert rig.peer.unread == 21 - MESSAGES_AHEAD
        assert await rig.reader.receive() is messages[0]
        await ticks()
        assert rig.peer.unread == 20 - MESSAGES_AHEAD
        assert rig.gone == []
        for message in messages[1:5]:
            assert await rig.reader.receive() is message
        await ticks()
        assert rig.gone == [WS_CLOSE]
        for message in messages[5:]:
            assert await rig.reader.receive() is message
        assert await rig.reader.receive() is WS_CLOSE
        await rig.reader.close()

    on_a_loop(test)


def test_big_websocket_messages_are_not_piled_up() -> None:
    async def test() -> None:
        big = {"type": "websocket.receive", "bytes": bytes(MESSAGE_BYTES_AHEAD)}
        rig = Rig(socket_scope(), big, text(1), WS_CLOSE)
        await rig.watch()
        assert rig.peer.unread == 2
        assert await rig.reader.receive() is big
        await ticks()
        assert rig.gone == [WS_CLOSE]
        await rig.reader.close()

    on_a_loop(test)


def test_a_receive_that_repeats_the_body_for_ever_is_not_asked_for_ever() -> None:
    async def test() -> None:
        asked = 0

        async def receive() -> Message:
            nonlocal asked
            asked += 1
            return body(b"again")

        reader = Reader(
            receive,
            http_scope(content_length="5"),
            lambda _message: None,
            contextvars.copy_context(),
        )
        reader.watch()
        await ticks()
        assert asked == 2
        for _ in range(4):
            assert await reader.receive() == body(b"again")
        assert asked == 4
        await reader.close()

    on_a_loop(test)


def test_empty_pieces_without_end_are_not_read_for_ever() -> None:
    async def test() -> None:
        async def receive() -> Message:
            return body(more=True)

        reader = Reader(
            receive,
            http_scope(transfer_encoding="chunked"),
            lambda _message: None,
            contextvars.copy_context(),
        )
        reader.watch()
        await ticks()
        assert await reader.receive() == body(more=True)
        await reader.close()

    on_a_loop(test)
