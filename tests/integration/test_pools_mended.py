"""A cancel at every turn of a request leaves httpcore's pool whole, whoever cancels.

The cancels are plain ones, outside of any run: a server's, ``asyncio.wait_for``'s. The
same with nothing patched shows that the fault is upstream's, and the mending ours.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import ssl
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest
from support.core import in_loop, settle
from support.storm import without_hangup

from hangup.clients import openings
from hangup.testing import telemetry

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

pytestmark = pytest.mark.timeout(60)

TURNS = 60
"""More turns of the loop than a request takes."""
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"
TRUST = ssl.create_default_context()
STACKS = ["httpx", "httpx2"]


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
        while await reader.readuntil(b"\r\n\r\n"):
            writer.write(ANSWER)
    writer.close()


async def _silent(
    greeted: asyncio.Event,
    gone: asyncio.Event,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
) -> None:
    """Take what the client says first, and say nothing."""
    await reader.read(1)
    greeted.set()
    while await reader.read(1000):
        pass
    gone.set()
    writer.close()


@contextlib.asynccontextmanager
async def serving(answer: Any = _answer) -> AsyncIterator[int]:
    """A server on loopback; its port. In the end no client has a socket open."""
    handlers: set[asyncio.Task[Any]] = set()

    async def handle(*connection: Any) -> None:
        task = asyncio.current_task()
        assert task is not None
        handlers.add(task)
        await answer(*connection)
        handlers.discard(task)

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
        server.close()
        async with asyncio.timeout(5):
            await asyncio.gather(*handlers)
    finally:
        server.close()


@contextlib.contextmanager
def patched(yes: bool) -> Iterator[None]:  # noqa: FBT001  the one thing it is told
    with telemetry() if yes else contextlib.nullcontext():
        yield


def lost(client: Any) -> int:
    """How many requests and connections of the pool are nobody's."""
    pool = client._transport._pool
    usable = [one for one in pool._connections if one.is_idle() or one.is_closed()]
    return len(pool._requests) + len(pool._connections) - len(usable)


async def cut(work: Any, turns: int, again: int | None) -> bool:
    """Cancel ``work`` after so many turns of the loop, and once more after so many.

    Returns:
        Whether it was done before.
    """
    task = asyncio.ensure_future(work)
    for more in (turns, again):
        if more is not None:
            for _ in range(more):
                await asyncio.sleep(0)
            task.cancel()
    await asyncio.wait([task])
    return not task.cancelled()


@pytest.mark.parametrize("again", [None, 0, 1, 2, 3])
@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("name", STACKS)
def test_a_cancel_at_any_turn_leaves_nothing_behind(
    name: str,
    again: int | None,
    warm: bool,  # noqa: FBT001  a parameter
) -> None:
    stack = import_module(name)

    @in_loop
    async def check() -> None:
        async with serving() as port:

            async def left(turns: int, url: str) -> tuple[int, bool]:
                async with stack.AsyncClient(verify=TRUST) as client:
                    if warm:
                        await client.get(url)
                    done = await cut(client.get(url), turns, again)
                    await settle()
                    found = lost(client)
                    if not found:
                        assert (await client.get(url)).status_code == 200
                return found, done

            with patched(yes=True):
                url = f"http://127.0.0.1:{port}/"
                found = [await left(turns, url) for turns in range(TURNS)]
            assert [count for count, _ in found] == [0] * TURNS
            assert found[-1][1], "a request takes more turns than were tried"

    check()


def test_without_the_mending_httpcore_loses_connections() -> None:
    """A single cancel is enough; once this fails, it is mended upstream."""
    stack = import_module("httpx")

    async def main() -> int:
        found = 0
        async with serving() as port:
            for turns in range(TURNS):
                client = stack.AsyncClient(verify=TRUST)
                await cut(client.get(f"http://127.0.0.1:{port}/"), turns, None)
                await settle()
                found += lost(client)
                await client.aclose()
        return found

    assert without_hangup(main()) > 0


@pytest.mark.parametrize("name", STACKS)
def test_a_waiting_request_gets_the_place_of_a_lost_connection(name: str) -> None:
    """The pool has one place, and two requests: the first is cut at every turn."""
    stack = import_module(name)

    @in_loop
    async def check() -> None:
        limits = stack.Limits(max_connections=1)
        async with serving() as port:
            url = f"http://127.0.0.1:{port}/"
            with patched(yes=True):
                for turns in range(TURNS):
                    async with stack.AsyncClient(verify=TRUST, limits=limits) as client:
                        first = asyncio.create_task(cut(client.get(url), turns, None))
                        async with asyncio.timeout(5):
                            answer = await client.get(url)
                        assert answer.status_code == 200
                        await first

    check()


@pytest.mark.parametrize("name", STACKS)
def test_connections_that_the_pool_was_closing_are_closed(name: str) -> None:
    """A request closes what has expired, several at once, before it goes itself."""
    stack = import_module(name)

    @in_loop
    async def check() -> None:
        async with serving() as port:
            url = f"http://127.0.0.1:{port}/"
            with patched(yes=True):
                for turns in range(10):
                    async with stack.AsyncClient(verify=TRUST) as client:
                        await asyncio.gather(*(client.get(url) for _ in range(4)))
                        for connection in client._transport._pool._connections:
                            connection._connection._expire_at = 0.0
                        await cut(client.get(url), turns, None)

    check()


@pytest.mark.parametrize("name", STACKS)
def test_a_connection_cut_off_while_tls_begins_is_closed_at_once(name: str) -> None:
    """And not when a garbage collection happens to find its socket."""
    stack = import_module(name)

    @in_loop
    async def check() -> None:
        greeted, gone = asyncio.Event(), asyncio.Event()

        async with serving(functools.partial(_silent, greeted, gone)) as port:
            with patched(yes=True):
                async with stack.AsyncClient(verify=TRUST, timeout=30) as client:
                    asking = asyncio.create_task(
                        client.get(f"https://127.0.0.1:{port}")
                    )
                    await greeted.wait()
                    asking.cancel()
                    await asyncio.wait([asking])
                    async with asyncio.timeout(5):
                        await gone.wait()
                    assert lost(client) == 0

    check()


@pytest.mark.parametrize("name", STACKS)
def test_an_opening_that_nobody_waits_for_ends_in_time(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where others may share a connection its opening goes on; not for ever."""
    stack = import_module(name)
    monkeypatch.setattr(openings, "PATIENCE", 0.2)

    @in_loop
    async def check() -> None:
        greeted, gone = asyncio.Event(), asyncio.Event()
        async with serving(functools.partial(_silent, greeted, gone)) as port:
            client = stack.AsyncClient(verify=TRUST, http2=True, timeout=None)
            with patched(yes=True):
                async with client:
                    asking = asyncio.create_task(
                        client.get(f"https://127.0.0.1:{port}")
                    )
                    await greeted.wait()
                    asking.cancel()
                    await asyncio.wait([asking])
                    assert not gone.is_set(), "whoever is cancelled waits for nothing"
                    async with asyncio.timeout(5):
                        await gone.wait()
                    await settle()
                    assert lost(client) == 0

    check()
