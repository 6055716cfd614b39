"""A server that is told to end: its callers know why, and the books are complete.

Nothing is exported here but at the end, so what is in the books was flushed.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from typing import TYPE_CHECKING, Any

import pytest
import websockets
from support.books import EVERY
from support.core import in_loop
from support.http2 import connected
from support.rig import LONG, SHORT, Caller
from support.serving import serving

from hangup.demo.brain import Script
from hangup.demo.model_server import ModelServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from _pytest.mark import ParameterSet

pytestmark = pytest.mark.timeout(110)

SHUTDOWN = ("abandoned", "shutdown")
HYPERCORN = ("--graceful-timeout", "1")
CUTS = pytest.mark.skipif(
    sys.version_info >= (3, 12),
    reason="hypercorn waits for every connection before it counts its own timeout, "
    "since asyncio's Server.wait_closed does what it says",
)


def wide(*values: Any) -> ParameterSet:
    """What one Python is enough for."""
    return pytest.param(*values, marks=pytest.mark.wide)


ENDED = (0, -15)
"""uvicorn ends by the signal it got."""


@contextlib.asynccontextmanager
async def served(
    server: str, directory: Path, target: str, options: tuple[str, ...] = ()
) -> AsyncIterator[tuple[Any, ModelServer]]:
    """Serve it with a model that takes long, and books that are only flushed."""
    async with ModelServer(default=LONG) as model:
        model.script("quick", SHORT)
        model.script(
            "patient", Script(tokens=30, input_tokens=20, rate=20, first_token=0.05)
        )
        async with serving(
            server,
            directory,
            model.base_url,
            target=f"support.leaf:{target}",
            options=options,
            environment={EVERY: "3600000"},
        ) as found:
            yield found, model


@pytest.mark.parametrize(
    ("server", "target", "options"),
    [
        wide("uvicorn", "app", ("--timeout-graceful-shutdown", "1")),
        ("uvicorn", "ending", ()),
        pytest.param("hypercorn", "app", HYPERCORN, marks=CUTS),
        pytest.param(
            *("hypercorn", "app", (*HYPERCORN, "--workers", "1")),
            marks=[CUTS, pytest.mark.wide],
        ),
        ("hypercorn", "ending", ()),
        wide("granian", "ending", ()),
        wide("granian", "ending", ("--workers-kill-timeout", "5")),
    ],
)
def test_what_outlasts_the_time_it_has_is_told_and_booked(
    server: str, target: str, options: tuple[str, ...], tmp_path: Path
) -> None:
    """A 503 with ``Retry-After``, a stream left unfinished, a close code 1012."""

    @in_loop
    async def check() -> None:
        async with served(server, tmp_path, target, options) as (found, model):
            before = await Caller.asks(found, "/json?model=quick")
            assert (await before.answer())[0] == 200
            as_json = await Caller.asks(found, "/json")
            as_stream = await Caller.asks(found, "/stream")
            as_sse = await Caller.asks(found, "/sse")
            url = f"ws://127.0.0.1:{found.port}/ws"
            async with websockets.connect(url, proxy=None) as socket:
                await model.log.opened_count(5)
                ending = asyncio.create_task(found.terminate())
                status, headers, _ = await as_json.answer()
                partial = [(await one.answer())[2] for one in (as_stream, as_sse)]
                with pytest.raises(websockets.ConnectionClosed) as closed:
                    await socket.recv()
            assert await ending in ENDED
            assert status == 503
            assert headers["retry-after"] == "1"
            assert headers["hangup-cause"] == "shutdown"
            assert not any(body.endswith(b"\r\n0\r\n\r\n") for body in partial)
            if server != "granian":  # it has closed the connection by then
                assert closed.value.rcvd is not None
                assert closed.value.rcvd.code == 1012
            assert all(call.cut for call in model.log.calls[1:])
        assert found.books.runs() == {SHUTDOWN: 4, ("delivered", "none"): 1}
        assert found.books.tokens()[("delivered", "none")] == 28

    check()


@pytest.mark.parametrize(
    ("target", "options"),
    [pytest.param("app", HYPERCORN, marks=CUTS), ("ending", ())],
)
def test_hypercorn_ends_although_a_stream_of_http2_is_unfinished(
    target: str, options: tuple[str, ...], tmp_path: Path
) -> None:
    """Left to itself it waits for ever for bodies that nobody sends any more."""

    @in_loop
    async def check() -> None:
        async with (
            served("hypercorn", tmp_path, target, options) as (found, model),
            connected(found.port) as connection,
        ):
            as_json, as_stream = connection.open("/json"), connection.open("/stream")
            await model.log.opened_count(2)
            ending = asyncio.create_task(found.terminate())
            await as_json.finished()
            await as_stream.finished()
            assert await ending in ENDED
            assert as_json.ended
            assert as_json.status == 503
            assert as_json.headers["retry-after"] == "1"
            assert as_stream.reset == 2
            assert not as_stream.ended
        assert found.books.runs() == {SHUTDOWN: 2}

    check()


@pytest.mark.parametrize("server", [wide("hypercorn"), wide("granian")])
def test_what_ends_in_time_is_drained(server: str, tmp_path: Path) -> None:
    """As on uvicorn (test_shutdown.py): it is delivered, and booked as that."""

    @in_loop
    async def check() -> None:
        options = ("--graceful-timeout", "10") if server == "hypercorn" else ()
        async with served(server, tmp_path, "app", options) as (found, model):
            caller = await Caller.asks(found, "/json?model=patient")
            await model.log.opened_count(1)
            ending = asyncio.create_task(found.terminate())
            assert (await caller.answer())[0] == 200
            assert await ending in ENDED
        assert found.books.runs() == {("delivered", "none"): 1}

    check()


@pytest.mark.wide
def test_granian_that_kills_its_workers_loses_the_books_without_shutdown_after(
    tmp_path: Path,
) -> None:
    """The limit: nothing tells a worker that it is about to be killed."""

    @in_loop
    async def check() -> None:
        kill = ("--workers-kill-timeout", "1")
        async with served("granian", tmp_path, "app", kill) as (found, model):
            caller = await Caller.asks(found, "/json")
            await model.log.opened_count(1)
            await found.terminate()
            caller.leaves()
        assert found.books.runs() == {}

    check()
