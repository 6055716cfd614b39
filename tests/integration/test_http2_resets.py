"""HTTP/2: the provider hears that nobody reads on, and nobody else loses by it.

Every test is made without hangup, too: once that fails, it is mended upstream.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import ssl
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest
from support.storm import without_hangup
from support.tls_model import ASK, PATH, Client, TlsModel

import hangup
from hangup.demo.brain import Script
from hangup.demo.workload import USER_HEADER
from hangup.testing import telemetry

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator

pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.parametrize("name", ["httpx", "httpx2"]),
    pytest.mark.parametrize("mended", [True, False]),
]

LONG = Script(tokens=400, input_tokens=5, rate=20, first_token=0.02)
"""An answer that takes 20 s."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsModel]:
    with TlsModel(tmp_path_factory.mktemp("model"), "h2", LONG) as serving:
        yield serving


def found(main: Coroutine[Any, Any, Any], *, mended: bool) -> Any:
    """What ``main`` returns with hangup, or without."""
    if not mended:
        return without_hangup(main)
    with telemetry():
        return asyncio.run(main)


def caller() -> str:
    """A name that the model's log tells from all others."""
    return secrets.token_hex(8)


def by(user: str) -> dict[str, Any]:
    """What a request of this caller is made of."""
    return {"json": {**ASK, "stream": True}, "headers": {USER_HEADER: user}}


async def _was_closed(client: Client, user: str, *, mended: bool) -> bool:
    """Whether the model hears within a second, or a few, that its caller has gone."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(5 if mended else 1):
            while True:
                log = (await client.client.get("/log", params={"user": user})).json()
                (call,) = log["calls"]
                if call["closed"] is not None:
                    return True
                await asyncio.sleep(0.02)
    return False


def test_a_stop_reaches_the_provider(
    name: str, model: TlsModel, *, mended: bool
) -> None:
    """Otherwise it generates to the end: there is no word from the client."""
    user = caller()

    async def main() -> bool:
        async with Client(name, model) as client:

            async def read(enough: asyncio.Event) -> None:
                async with client.client.stream("POST", PATH, **by(user)) as answer:
                    async for _ in answer.aiter_bytes():
                        enough.set()

            enough = asyncio.Event()
            if mended:
                with pytest.raises(hangup.RunCancelled):
                    async with hangup.run() as run:
                        reading = asyncio.create_task(read(enough))
                        await enough.wait()
                        run.cancel("killed")
                        await reading
            else:
                reading = asyncio.create_task(read(enough))
                await enough.wait()
                reading.cancel()
                await asyncio.wait([reading])
            return await _was_closed(client, user, mended=mended)

    assert found(main(), mended=mended) is mended


def test_so_does_the_close_of_a_thread(
    name: str, model: TlsModel, *, mended: bool
) -> None:
    user = caller()

    async def main() -> bool:
        loop = asyncio.get_running_loop()
        async with Client(name, model) as other:

            def leave() -> bool:
                trust = ssl.create_default_context(cafile=model.authority)
                stack = import_module(name)
                with stack.Client(base_url=model.url, verify=trust, http2=True) as one:
                    with one.stream("POST", PATH, **by(user)) as answer:
                        next(answer.iter_bytes())
                    looking = _was_closed(other, user, mended=mended)
                    return asyncio.run_coroutine_threadsafe(looking, loop).result()

            return await asyncio.to_thread(leave)

    assert found(main(), mended=mended) is mended


def test_what_nobody_will_read_takes_up_no_window(
    name: str, model: TlsModel, *, mended: bool
) -> None:
    """The window of the connection is everybody's, and stays as wide as it was."""

    async def main() -> tuple[int, int]:
        async with Client(name, model) as client:

            def taken() -> int:
                state = client.connections[0]._connection._h2_state
                window = state._inbound_flow_control_window_manager
                processed = window.current_window_size + window._bytes_processed
                return int(window.max_window_size - processed)

            async with client.client.stream("POST", PATH, **by(caller())):
                async with asyncio.timeout(10):
                    while not taken():
                        await client.client.get("/v1/models")  # reads for both
                before = taken()
            return before, taken()

    before, after = found(main(), mended=mended)
    assert before > 0
    assert after == (0 if mended else before)
