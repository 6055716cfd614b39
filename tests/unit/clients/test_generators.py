"""A generator that Starlette streams is closed when the stop ends the stream."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest
from starlette.responses import StreamingResponse
from support.core import in_loop

import hangup
from hangup.clients import generators
from hangup.errors import RunCancelled

if TYPE_CHECKING:
    from collections.abc import Iterator

AT_MOST = 10.0


@pytest.fixture(autouse=True)
def _installed() -> Iterator[None]:
    generators.install()
    yield
    generators.uninstall()


class Pieces:
    """A generator, and what became of it."""

    def __init__(self, *, fails: bool = False) -> None:
        self.ended = threading.Event()
        self.thread = 0
        self.run: object = None
        self._fails = fails
        self.response = StreamingResponse(self._pieces())

    def _pieces(self) -> Iterator[str]:
        try:
            while True:
                yield "piece"
        finally:
            self.thread = threading.get_ident()
            self.run = hangup.current_run()
            self.ended.set()
            if self._fails:
                raise KeyError("in the clean-up")

    async def stream(self, sent: asyncio.Event) -> None:
        """Stream to a client who reads one piece."""

        async def send(message: Any) -> None:
            if message.get("body"):
                sent.set()
                await asyncio.Event().wait()

        await self.response.stream_response(send)

    async def has_ended(self) -> None:
        assert await asyncio.to_thread(self.ended.wait, AT_MOST)


@pytest.mark.parametrize("fails", [False, True])
def test_it_is_closed_on_a_thread_of_the_run(fails: bool) -> None:  # noqa: FBT001
    @in_loop
    async def scenario() -> None:
        pieces = Pieces(fails=fails)
        sent = asyncio.Event()
        with pytest.raises(RunCancelled):
            async with hangup.run() as run:
                task = asyncio.create_task(pieces.stream(sent))
                await sent.wait()
                run.cancel("disconnect")
                await task
        await pieces.has_ended()
        assert pieces.thread != threading.get_ident()
        assert pieces.run is run

    scenario()


@pytest.mark.parametrize("mode", ["off", "observe", "refuse", None])
def test_where_nothing_is_stopped_nothing_is_closed(mode: str | None) -> None:
    """Its owner's cancel alone is not ours; None is outside any run."""

    @in_loop
    async def scenario() -> None:
        pieces = Pieces()
        sent = asyncio.Event()

        async def stream() -> None:
            task = asyncio.create_task(pieces.stream(sent))
            await sent.wait()
            task.cancel()
            await asyncio.wait([task])

        if mode is None:
            await stream()
        else:
            async with hangup.run(mode=mode):
                await stream()
        await asyncio.get_running_loop().shutdown_default_executor()
        assert not pieces.ended.is_set()

    scenario()


@in_loop
async def test_one_that_runs_right_now_is_left_to_its_thread() -> None:
    """It gets the stop there, by its own next call."""
    inside, release, ended = threading.Event(), threading.Event(), threading.Event()

    def pieces() -> Iterator[str]:
        try:
            inside.set()
            release.wait(AT_MOST)
            yield "piece"
        finally:
            ended.set()

    generator = pieces()
    reading = asyncio.create_task(asyncio.to_thread(next, generator))
    assert await asyncio.to_thread(inside.wait, AT_MOST)
    await asyncio.to_thread(generators._close, generator)
    assert not ended.is_set()
    release.set()
    assert await reading == "piece"


def test_taking_it_off_restores_the_class() -> None:
    generators.uninstall()
    before = dict(vars(StreamingResponse))
    generators.install()
    generators.install()
    assert dict(vars(StreamingResponse)) != before
    generators.uninstall()
    assert dict(vars(StreamingResponse)) == before
