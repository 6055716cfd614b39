"""What is found behind ``send``, and that nothing is done where it is not known."""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING, Any

import pytest

from hangup.core import guard
from hangup.servers import _asgi_servers as servers

if TYPE_CHECKING:
    from support.asgi import Message, Send


class Transport:
    closed = False

    def close(self) -> None:
        self.closed = True


class Cycle:
    """What uvicorn serves a request with, as far as it matters here."""

    def __init__(self) -> None:
        self.transport = Transport()

    async def send(self, message: Message) -> None:
        raise NotImplementedError


Cycle.__module__ = "uvicorn.protocols.http"


def wrapped(send: Send) -> Send:
    """As pure ASGI middleware does."""
    seen = []

    async def inner(message: Message) -> None:
        seen.append(message)
        await send(message)

    return inner


def partial(send: Send) -> Send:
    async def sender(send: Send, message: Message) -> None:
        await send(message)

    return functools.partial(sender, send)


def of_another_name(send: Send) -> Send:
    async def inner(message: Message) -> None:
        await forward(message)

    forward = send
    return inner


@pytest.mark.parametrize("depth", [0, 1, 5, 31])
def test_pure_middleware_is_looked_through(depth: int) -> None:
    cycle = Cycle()
    send = cycle.send
    for _ in range(depth):
        send = wrapped(send)  # type: ignore[assignment]
    assert asyncio.run(servers.cut(send))
    assert cycle.transport.closed


@pytest.mark.parametrize("wrapper", [partial, of_another_name])
def test_another_kind_of_wrapper_is_left_to_the_server(wrapper: Any) -> None:
    cycle = Cycle()
    assert not asyncio.run(servers.cut(wrapper(cycle.send)))
    assert not cycle.transport.closed


def test_a_wrapper_of_itself_is_not_followed_for_ever() -> None:
    async def send(message: Message) -> None:
        await send(message)

    assert not asyncio.run(servers.cut(send))
    assert not servers.going_down(send)


def test_a_server_that_is_not_as_expected_is_left_alone() -> None:
    """A newer release may look otherwise: then nothing is done, and it is logged."""
    cycle = Cycle()
    del cycle.transport
    guard.strict(on=False)
    assert not asyncio.run(servers.cut(cycle.send))
    guard.strict(on=True)
    with pytest.raises(AttributeError):
        asyncio.run(servers.cut(cycle.send))


def test_a_server_that_is_not_known_is_left_alone() -> None:
    class Other:
        context = transport = None

        async def send(self, message: Message) -> None:
            raise NotImplementedError

    async def check() -> None:
        send = Other().send
        assert not servers.going_down(send)
        assert not await servers.cut(send)
        assert not await servers.release(send)

    asyncio.run(check())
