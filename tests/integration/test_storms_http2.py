"""HTTP/2 behind TLS: a request that is cut off is nobody else's business.

One connection serves everybody. The model is behind hypercorn, in a process of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from importlib import import_module
from typing import TYPE_CHECKING, Any, Self

import pytest
from support.core import in_loop
from support.storm import storm, succeed, without_hangup
from support.tls_model import TlsModel

import hangup
from hangup.demo.brain import Script
from hangup.testing import telemetry

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.timeout(120)

STACKS = ["httpx", "httpx2"]
CANCELS = 500
PATH = "/v1/chat/completions"
QUICK = Script(tokens=4, input_tokens=5, rate=400, first_token=0.004)
LONG = Script(tokens=400, input_tokens=5, rate=20, first_token=0.02)
ASK: Any = {
    "model": "gpt-4o-mini",
    "messages": [{"role": "user", "content": "Well?"}],
}


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsModel]:
    """A model that answers within milliseconds."""
    with TlsModel(tmp_path_factory.mktemp("quick"), "h2", QUICK) as model:
        yield model


class Client:
    """A client of one stack that speaks HTTP/2 with a model."""

    def __init__(self, name: str, model: TlsModel) -> None:
        stack = import_module(name)
        self.client = stack.AsyncClient(
            base_url=model.url,
            verify=ssl.create_default_context(cafile=model.authority),
            http2=True,
            timeout=stack.Timeout(20),
        )
        self.errors: list[str] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.client.aclose()

    async def ask(self, **extensions: Any) -> None:
        """Ask once; what fails is written down."""
        try:
            answer = await self.client.post(PATH, json=ASK, extensions=extensions)
            answer.raise_for_status()
            assert answer.http_version == "HTTP/2"
            assert answer.json()["choices"]
        except Exception as error:
            self.errors.append(repr(error))
            raise

    @property
    def connections(self) -> list[Any]:
        found: list[Any] = self.client._transport._pool._connections
        return found


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


@pytest.mark.parametrize("mended", [True, False])
@pytest.mark.parametrize("name", STACKS)
def test_the_provider_hears_that_nobody_reads_on(
    name: str,
    mended: bool,  # noqa: FBT001  a parameter
    tmp_path: Path,
) -> None:
    """Without hangup it generates to the end: there is no word from the client."""

    async def main() -> bool:
        async with Client(name, model) as client:

            async def stream(enough: asyncio.Event) -> None:
                streamed = client.client.stream(
                    "POST", PATH, json=ASK | {"stream": True}
                )
                async with streamed as answer:
                    async for _ in answer.aiter_bytes():
                        enough.set()

            async def killed() -> None:
                enough = asyncio.Event()
                async with hangup.run() as run:
                    reading = asyncio.create_task(stream(enough))
                    await enough.wait()
                    run.cancel("killed")
                    await reading

            if mended:
                with pytest.raises(hangup.RunCancelled):
                    await killed()
            else:
                enough = asyncio.Event()
                reading = asyncio.create_task(stream(enough))
                await enough.wait()
                reading.cancel()
                await asyncio.wait([reading])
            return await _was_closed(client)

    with TlsModel(tmp_path, "h2", LONG) as model:
        if mended:
            with telemetry():
                assert asyncio.run(main())
        else:
            assert not without_hangup(main())


@pytest.mark.parametrize("mended", [True, False])
@pytest.mark.parametrize("name", STACKS)
def test_nor_does_it_go_on_for_a_thread_that_left(
    name: str,
    mended: bool,  # noqa: FBT001  a parameter
    tmp_path: Path,
) -> None:
    async def main() -> bool:
        async with Client(name, model) as other:

            def leave() -> None:
                stack = import_module(name)
                trust = ssl.create_default_context(cafile=model.authority)
                streamed = {**ASK, "stream": True}
                with (
                    stack.Client(base_url=model.url, verify=trust, http2=True) as one,
                    one.stream("POST", PATH, json=streamed) as answer,
                ):
                    next(answer.iter_bytes())
                    answer.close()
                    left.append(asyncio.run_coroutine_threadsafe(closed(), loop))
                    left[0].result()

            async def closed() -> bool:
                return await _was_closed(other)

            left: list[Any] = []
            loop = asyncio.get_running_loop()
            await asyncio.to_thread(leave)
            return bool(left[0].result())

    with TlsModel(tmp_path, "h2", LONG) as model:
        if mended:
            with telemetry():
                assert asyncio.run(main())
        else:
            assert not without_hangup(main())


@pytest.mark.parametrize("mended", [True, False])
@pytest.mark.parametrize("name", STACKS)
def test_what_nobody_will_read_takes_up_no_window(
    name: str,
    mended: bool,  # noqa: FBT001  a parameter
    tmp_path: Path,
) -> None:
    """The window of the connection is everybody's, and stays as wide as it was."""

    async def main() -> tuple[int, int]:
        async with Client(name, model) as client:

            def taken() -> int:
                state = client.connections[0]._connection._h2_state
                window = state._inbound_flow_control_window_manager
                processed = window.current_window_size + window._bytes_processed
                return int(window.max_window_size - processed)

            streamed = {**ASK, "stream": True}
            async with client.client.stream("POST", PATH, json=streamed):
                async with asyncio.timeout(10):
                    while not taken():
                        await client.client.get("/v1/models")  # reads for both
                before = taken()
            return before, taken()

    with TlsModel(tmp_path, "h2", LONG) as model:
        if mended:
            with telemetry():
                before, after = asyncio.run(main())
        else:
            before, after = without_hangup(main())
    assert before > 0
    assert after == (0 if mended else before)


async def _was_closed(client: Client) -> bool:
    """Whether the model hears within a second that its one caller has gone."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(1):
            while True:
                log = (await client.client.get("/log")).json()
                (call,) = log["calls"]
                if call["closed"] is not None:
                    return True
                await asyncio.sleep(0.02)
    return False
