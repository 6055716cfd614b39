"""HTTP/2 behind TLS: a request that is cut off is nobody else's business.

One connection serves everybody. The model is behind hypercorn, in a process of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import pytest
from support.core import in_loop
from support.storm import storm, succeed, without_hangup
from support.tls_model import Client, TlsModel

from hangup.demo.brain import Script
from hangup.testing import telemetry

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.timeout(300)

STACKS = ["httpx", "httpx2"]
CANCELS = 500
QUICK = Script(tokens=4, input_tokens=5, rate=400, first_token=0.004)


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsModel]:
    """A model that answers within milliseconds."""
    with TlsModel(tmp_path_factory.mktemp("quick"), "h2", QUICK) as model:
        yield model


@pytest.mark.parametrize("name", STACKS)
def test_a_storm_on_one_connection_fails_nobody(
    name: str, quick: TlsModel, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither those that are asked in the storm and not cut off, nor those after it."""

    async def stormy(*, hangup_: bool) -> tuple[int, list[str], int]:
        async with Client(name, quick) as client:
            await client.ask()
            await storm(client.ask, CANCELS, hangup_=hangup_)
            succeeded = await succeed(client.ask, within=30)
            return succeeded, client.errors, len(client.connections)

    without = without_hangup(stormy(hangup_=False))

    @in_loop
    async def check() -> None:
        with telemetry():
            succeeded, errors, connections = await stormy(hangup_=True)
        with capsys.disabled():
            print(  # noqa: T201  the figures are asked for
                f"\n{name} over HTTP/2 after {CANCELS} cancels: {succeeded} of 20 "
                f"succeed, {len(errors)} failed on the way; without hangup "
                f"{without[0]} of 20, {len(without[1])} failed"
            )
        assert errors == []
        assert succeeded == 20
        assert connections == 1

    check()


EVENTS = [
    "connection.connect_tcp.started",
    "connection.connect_tcp.complete",
    "connection.start_tls.started",
    "connection.start_tls.complete",
    "http2.send_connection_init.started",
    "http2.send_connection_init.complete",
    "http2.send_request_headers.started",
    "http2.send_request_headers.complete",
    "http2.receive_response_headers.started",
]
"""What httpcore says of a request that is the first on a connection, in order."""


async def _beside(client: Client, event: str, turns: int) -> None:
    """Cut a first request so many turns after ``event``, while another one waits."""
    waiting = asyncio.Event()

    async def hear(name: str, _info: object) -> None:
        if name == EVENTS[0]:
            waiting.set()
            await asyncio.sleep(0)  # the other has come as far as this one's lock
        if name == event:
            cut.set()

    cut = asyncio.Event()
    first = asyncio.create_task(client.ask(trace=hear))
    await waiting.wait()
    second = asyncio.create_task(client.ask())
    await cut.wait()
    for _ in range(turns):
        await asyncio.sleep(0)
    first.cancel()
    done, _ = await asyncio.wait([first], timeout=2)
    assert done, "the one that was cancelled has to wait"
    await second


@pytest.mark.parametrize("turns", [0, 1, 5])
@pytest.mark.parametrize("name", STACKS)
def test_who_waits_for_the_connection_gets_it_though_its_opener_is_cut_off(
    name: str, turns: int, quick: TlsModel
) -> None:
    @in_loop
    async def check() -> None:
        async def at(event: str) -> None:
            async with Client(name, quick) as client:
                await _beside(client, event, turns)
                await client.ask()
                assert client.errors == []
                assert len(client.connections) == 1

        with telemetry():
            for event in EVENTS:
                await at(event)

    check()


@pytest.mark.parametrize("name", STACKS)
def test_without_the_mending_they_fail_with_it(name: str, quick: TlsModel) -> None:
    """Once this fails, it is mended upstream."""

    async def main() -> list[str]:
        failed: list[str] = []
        for event in EVENTS:
            for turns in (0, 1, 5):
                async with Client(name, quick) as client:
                    with contextlib.suppress(Exception):
                        await _beside(client, event, turns)
                    failed += client.errors
        return failed

    assert without_hangup(main())


@pytest.mark.parametrize("mended", [True, False])
@pytest.mark.parametrize("name", STACKS)
def test_a_frame_that_was_begun_is_written(
    name: str,
    mended: bool,  # noqa: FBT001  a parameter
    quick: TlsModel,
) -> None:
    """A request is cut while it is sent; the next one on the connection is answered."""

    async def cut(client: Client, event: str, turns: int) -> None:
        reached = asyncio.Event()

        async def hear(name: str, _info: object) -> None:
            if name == event:
                reached.set()

        asking = asyncio.create_task(client.ask(trace=hear))
        await reached.wait()
        for _ in range(turns):
            await asyncio.sleep(0)
        asking.cancel()
        await asyncio.wait([asking])

    async def main() -> tuple[list[str], int]:
        connections = set()
        async with Client(name, quick) as client:
            await client.ask()
            for event in ("http2.send_request_headers", "http2.send_request_body"):
                for turns in range(8):
                    await cut(client, f"{event}.started", turns)
                    with contextlib.suppress(Exception):
                        await client.ask()
                    connections.update(client.connections)
        return client.errors, len(connections)

    if mended:
        with telemetry():
            assert asyncio.run(main()) == ([], 1)
    else:
        assert without_hangup(main()) != ([], 1)
