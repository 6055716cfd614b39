"""The model client's own retries are asked for too: one span, several requests."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import openai
import pytest

import hangup
from hangup.testing import telemetry

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

CHAT = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m"}
ANSWER = (
    b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 2\r\n"
    b"content-type: application/json\r\nconnection: close\r\n\r\n{}"
)


class Failing:
    """A provider that answers 500 at once, and counts."""

    def __init__(self) -> None:
        self.requests = 0
        self.answered = asyncio.Event()
        self.url = ""

    async def answer(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await reader.readuntil(b"\r\n\r\n")
        self.requests += 1
        writer.write(ANSWER)
        await writer.drain()
        writer.close()
        self.answered.set()


@contextlib.asynccontextmanager
async def failing() -> AsyncIterator[Failing]:
    provider = Failing()
    server = await asyncio.start_server(provider.answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    provider.url = f"http://127.0.0.1:{port}/v1"
    async with server:
        yield provider


def question() -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": "x"}]}


def test_a_sync_client_in_a_thread_makes_no_retry_after_the_stop() -> None:
    """Nothing can interrupt the thread; its next attempt is refused."""

    async def main() -> int:
        with telemetry() as measured:
            async with failing() as provider:
                client = openai.OpenAI(
                    base_url=provider.url, api_key="x", max_retries=4
                )

                def ask() -> None:
                    tracer = measured.tracer()
                    with (
                        client,
                        tracer.start_as_current_span("chat m", attributes=CHAT),
                    ):
                        client.chat.completions.create(**question())

                with pytest.raises(hangup.RunCancelled):
                    async with hangup.run() as run:
                        asking = asyncio.create_task(hangup.to_thread(ask))
                        await provider.answered.wait()
                        # The client waits half a second before its first retry.
                        run.cancel("disconnect")
                        await asking
                return provider.requests

    assert asyncio.run(main()) == 1


def test_in_refuse_mode_a_call_in_flight_ends_and_its_retries_do_not_begin() -> None:
    """Nothing is cut: the client sleeps until its retry, and that is refused."""

    async def main() -> int:
        with telemetry() as measured:
            async with (
                failing() as provider,
                openai.AsyncOpenAI(
                    base_url=provider.url, api_key="x", max_retries=4
                ) as client,
            ):
                tracer = measured.tracer()
                with pytest.raises(hangup.DeadlineExceeded):
                    async with hangup.run(budget=0.3, mode="refuse"):
                        with tracer.start_as_current_span("chat m", attributes=CHAT):
                            await client.chat.completions.create(**question())
                return provider.requests

    assert asyncio.run(main()) == 1


def test_with_time_left_the_retries_are_untouched() -> None:
    """Two retries are three requests, inside a run as outside."""

    async def main() -> int:
        with telemetry() as measured:
            async with (
                failing() as provider,
                openai.AsyncOpenAI(
                    base_url=provider.url, api_key="x", max_retries=2
                ) as client,
            ):
                tracer = measured.tracer()
                with pytest.raises(openai.InternalServerError):
                    async with hangup.run(budget=60):
                        with tracer.start_as_current_span("chat m", attributes=CHAT):
                            await client.chat.completions.create(**question())
                return provider.requests

    assert asyncio.run(main()) == 3
