"""The reader of an aiohttp WebSocket: ahead of its handler, and in order."""

from __future__ import annotations

import asyncio
from contextvars import copy_context
from typing import Any

import pytest
from aiohttp import WSMessage, WSMsgType
from support.core import in_loop, settle

from hangup.servers._aiohttp_socket import MESSAGES_AHEAD, SocketReader


class Socket:
    """A WebSocket whose ``receive`` gives what the test feeds it.

    Attributes:
        asked: How many calls of ``receive`` have begun.
        waiting: How many wait right now; aiohttp allows one.
    """

    def __init__(self) -> None:
        self.prepared = True
        self.asked = 0
        self.waiting = 0
        self.fed: asyncio.Queue[Any] = asyncio.Queue()
        self.closes: list[str] = []

    def feed(self, *texts: str) -> None:
        for text in texts:
            self.fed.put_nowait(WSMessage(WSMsgType.TEXT, text, None))

    def close(self) -> None:
        self.fed.put_nowait(WSMessage(WSMsgType.CLOSE, 1001, ""))

    async def receive(self, timeout: float | None = None) -> Any:  # noqa: ASYNC109
        self.asked += 1
        assert self.waiting == 0, "Concurrent call to receive() is not allowed"
        self.waiting += 1
        try:
            async with asyncio.timeout(timeout):
                found = await self.fed.get()
        finally:
            self.waiting -= 1
        if isinstance(found, Exception):
            raise found
        return found


def reader_of(socket: Any) -> SocketReader:
    return SocketReader(socket, lambda: socket.closes.append("x"), copy_context())


@in_loop
async def test_until_it_watches_it_is_passed_straight_through() -> None:
    socket = Socket()
    reader_of(socket)
    await settle()
    assert socket.asked == 0
    socket.feed("a")
    assert (await socket.receive()).data == "a"
    assert socket.asked == 1


@in_loop
async def test_messages_keep_their_order_and_none_is_lost() -> None:
    socket = Socket()
    reader = reader_of(socket)
    reader.watch()
    socket.feed("a", "b")
    await settle()
    socket.feed("c")
    assert [(await socket.receive()).data for _ in range(3)] == ["a", "b", "c"]
    waiting = asyncio.create_task(socket.receive())
    await settle()
    assert reader.wanted
    waiting.cancel()
    await asyncio.wait((waiting,))
    socket.feed("d")
    await settle()
    assert not reader.wanted
    assert (await socket.receive()).data == "d"
    await reader.close()


@in_loop
async def test_a_close_is_seen_while_the_handler_is_elsewhere() -> None:
    socket = Socket()
    reader = reader_of(socket)
    reader.watch()
    socket.feed("a")
    socket.close()
    await settle()
    assert socket.closes == ["x"]
    assert (await socket.receive()).data == "a"
    assert (await socket.receive()).type is WSMsgType.CLOSE
    assert socket.closes == ["x"]
    await reader.close()


@in_loop
async def test_it_is_known_whether_the_handler_waits_when_the_close_comes() -> None:
    socket = Socket()
    wanted: list[bool] = []
    reader = SocketReader(
        socket,  # type: ignore[arg-type]  # what it needs of one
        lambda: wanted.append(reader.wanted),
        copy_context(),
    )
    receiving = asyncio.create_task(socket.receive())  # in the socket's own
    await settle()
    reader.watch()
    socket.close()
    await receiving
    assert wanted == [True]


@in_loop
async def test_it_is_known_also_where_the_reader_waits_for_it() -> None:
    socket = Socket()
    wanted: list[bool] = []
    reader = SocketReader(
        socket,  # type: ignore[arg-type]  # what it needs of one
        lambda: wanted.append(reader.wanted),
        copy_context(),
    )
    reader.watch()
    await settle()
    receiving = asyncio.create_task(socket.receive())
    await settle()
    socket.close()
    assert (await receiving).type is WSMsgType.CLOSE
    assert wanted == [True]


@in_loop
async def test_so_many_are_read_ahead_and_no_more() -> None:
    socket = Socket()
    reader = reader_of(socket)
    reader.watch()
    socket.feed(*"abcdefghijklmnopqrstuvwxyz")
    await settle()
    assert socket.fed.qsize() == 26 - MESSAGES_AHEAD
    assert (await socket.receive()).data == "a"
    await settle()
    assert socket.fed.qsize() == 26 - MESSAGES_AHEAD - 1
    await reader.close()


@in_loop
async def test_a_timeout_is_the_handlers_also_while_the_reader_waits() -> None:
    socket = Socket()
    reader = reader_of(socket)
    reader.watch()
    await settle()
    with pytest.raises(TimeoutError):
        await socket.receive(timeout=0.01)
    socket.feed("late")
    assert (await socket.receive(timeout=5)).data == "late"
    await reader.close()


@in_loop
async def test_what_the_socket_raises_is_raised_to_the_handler() -> None:
    socket = Socket()
    reader = reader_of(socket)
    reader.watch()
    socket.fed.put_nowait(RuntimeError("closed"))
    await settle()
    socket.fed.put_nowait(RuntimeError("closed still"))
    with pytest.raises(RuntimeError, match="still"):
        await socket.receive()
    await reader.close()


@in_loop
async def test_before_the_handshake_nothing_is_read() -> None:
    socket = Socket()
    socket.prepared = False
    reader = reader_of(socket)
    reader.watch()
    await settle()
    assert socket.asked == 0
    socket.prepared = True
    socket.close()
    async with asyncio.timeout(10):
        while not socket.closes:  # noqa: ASYNC110  the handshake tells nobody
            await asyncio.sleep(0.01)
    await reader.close()
