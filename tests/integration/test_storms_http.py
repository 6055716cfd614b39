"""Case b1: thousands of cancels on one shared client, and then ordinary runs.

The model is a process of its own, so that its work does not share the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import ssl
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest
from openai import AsyncOpenAI
from support.core import in_loop
from support.requires import narrow, wide
from support.storm import AT_ONCE, LONGEST, storm, succeed, without_hangup

import hangup
from hangup.demo.child import Child
from hangup.testing import telemetry

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

pytestmark = pytest.mark.timeout(300)

SIZE = 10
PATH = "/v1/chat/completions"
ASK: Any = {
    "model": "gpt-4o-mini",
    "max_tokens": 4,
    "messages": [{"role": "user", "content": "Well?"}],
}
STACKS = ["httpx", "httpx2"]


@contextlib.asynccontextmanager
async def model() -> AsyncIterator[str]:
    """A model that answers within a few milliseconds; its URL."""
    child = await Child.start("hangup.demo.model_server", "--first-token", "0.004")
    child.serve({})
    try:
        yield child.url
    finally:
        await child.stop()


class Shared:
    """One client for everybody: httpx itself, or OpenAI's on httpx2."""

    def __init__(self, name: str, url: str, patience: float = 5.0) -> None:
        self._stack = import_module(name)
        self.client = self._stack.AsyncClient(
            base_url=url,
            verify=ssl.create_default_context(),
            limits=self._stack.Limits(max_connections=SIZE),
            timeout=self._stack.Timeout(5, pool=patience),
        )
        self._openai = AsyncOpenAI(
            base_url=f"{url}/v1",
            api_key="test",
            max_retries=0,
            # httpx is not what this SDK is made on.
            http_client=self.client if name == "httpx2" else None,
        )

    @property
    def work(self) -> Callable[[], Awaitable[object]]:
        """One question and its answer."""
        return self._ask if self._stack.__name__ == "httpx" else self._ask_openai

    async def _ask(self) -> None:
        answer = await self.client.post(PATH, json=ASK)
        answer.raise_for_status()
        assert answer.json()["choices"]

    async def _ask_openai(self) -> None:
        assert (await self._openai.chat.completions.create(**ASK)).choices

    def active(self) -> str:
        """What the pool thinks is going on: nothing, where it is empty."""
        pool = self.client._transport._pool
        busy = [one for one in pool._connections if not one.is_idle()]
        return f"{len(pool._requests)} requests, {len(busy)} connections"

    async def idle(self) -> str:
        """Return what it thinks once it has had time to close what was cut off."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2):
                while self.active() != IDLE:  # noqa: ASYNC110  pools tell nobody
                    await asyncio.sleep(0.01)
        return self.active()

    async def close(self) -> None:
        await self._openai.close()
        await self.client.aclose()


IDLE = "0 requests, 0 connections"


async def _without(name: str, cancels: int) -> tuple[int, str]:
    """Return how many runs succeed after the same storm without hangup."""
    async with model() as url:
        shared = Shared(name, url, patience=0.5)
        await storm(shared.work, cancels, hangup_=False)
        try:
            return await succeed(shared.work), await shared.idle()
        finally:
            await shared.close()


async def _with(name: str, cancels: int) -> tuple[int, str, str]:
    async with model() as url:
        shared = Shared(name, url)
        assert await storm(shared.work, cancels) == cancels
        before = await shared.idle()
        succeeded = await succeed(shared.work, within=20)
        after = await shared.idle()
        await shared.close()
        return succeeded, before, after


@pytest.mark.parametrize("name", STACKS)
@pytest.mark.parametrize("cancels", [narrow(2_000), wide(10_000)])
def test_b1_cancel_poisons_http_pool(
    name: str, cancels: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """After the storm every ordinary run succeeds, and the idle pool is empty."""
    without, left = without_hangup(_without(name, 500))

    @in_loop
    async def check() -> None:
        with telemetry():
            succeeded, before, after = await _with(name, cancels)
        with capsys.disabled():
            print(  # noqa: T201  the figures are asked for
                f"\n{name} after {cancels} cancels: {succeeded} of 20 succeed; without "
                f"hangup {without} of 20, and {left} that never end"
            )
        if name == "httpx":  # once this fails, it is mended upstream
            assert (without, left) == (0, "0 requests, 10 connections")
        assert before == IDLE
        assert succeeded == 20
        assert after == IDLE

    check()


@pytest.mark.parametrize("name", STACKS)
def test_a_client_that_threads_share_survives_a_storm(name: str) -> None:
    """Their runs are killed at random: refused, or closed from another thread."""
    stack = import_module(name)
    moments = random.Random(3)  # noqa: S311  not for secrets
    limits = stack.Limits(max_connections=SIZE)
    trust = ssl.create_default_context()

    @in_loop
    async def check() -> None:
        async with model() as url:
            with (
                telemetry(),
                stack.Client(base_url=url, verify=trust, limits=limits) as client,
            ):

                def ask() -> None:
                    with client.stream(
                        "POST", PATH, json={**ASK, "stream": True}
                    ) as it:
                        assert b"[DONE]" in b"".join(it.iter_bytes())

                def half() -> None:
                    """Leave it half read: the stop closes it."""
                    request = client.build_request(
                        "POST", PATH, json={**ASK, "stream": True}
                    )
                    left = client.send(request, stream=True)
                    next(left.iter_bytes())
                    while True:
                        hangup.check()
                        ask()

                async def killed(work: Callable[[], None]) -> None:
                    with contextlib.suppress(hangup.RunAbandoned):
                        async with hangup.run() as run:
                            loop = asyncio.get_running_loop()
                            loop.call_later(moments.uniform(0, LONGEST), run.cancel)
                            await hangup.to_thread(work)

                async def worker(work: Callable[[], None]) -> None:
                    for _ in range(10):
                        await killed(work)

                async with asyncio.timeout(60):
                    await asyncio.gather(
                        *(worker(half if n % 2 else ask) for n in range(AT_ONCE))
                    )

                async def calm() -> None:
                    await hangup.to_thread(ask)

                assert await succeed(calm, within=20) == 20
                pool = client._transport._pool
                assert pool._requests == []
                assert all(one.is_idle() for one in pool._connections)

    check()
