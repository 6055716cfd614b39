"""The model server over real sockets, asked by the real client."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import pytest
from openai import AsyncOpenAI, InternalServerError

from hangup.demo.brain import Script
from hangup.demo.child import Child
from hangup.demo.model_server import ModelServer
from hangup.demo.sockets import get_json

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletionMessageParam

_MESSAGES: list[ChatCompletionMessageParam] = [{"role": "user", "content": "one two"}]


def test_the_real_client_gets_usage_that_the_log_confirms() -> None:
    async def ask() -> None:
        async with ModelServer(default=Script(rate=1e6, first_token=0.0)) as model:
            client = AsyncOpenAI(base_url=model.base_url, api_key="x")
            whole = await client.chat.completions.create(model="m", messages=_MESSAGES)
            stream = await client.chat.completions.create(
                model="m",
                messages=_MESSAGES,
                stream=True,
                stream_options={"include_usage": True},
            )
            usages = [whole.usage, *[chunk.usage async for chunk in stream]]
            told = [usage.total_tokens for usage in usages if usage is not None]
            await model.log.closed_count(2)
            assert told == [call.total_tokens for call in model.log.calls]
            await client.close()

    asyncio.run(ask())


@pytest.mark.parametrize("stream", [False, True])
def test_the_close_of_a_cancelled_call_is_noticed_within_milliseconds(
    *, stream: bool
) -> None:
    async def ask() -> None:
        async with ModelServer(default=Script(rate=5.0, tokens=100)) as model:
            client = AsyncOpenAI(base_url=model.base_url, api_key="x")

            async def call() -> None:
                if not stream:
                    await client.chat.completions.create(model="m", messages=_MESSAGES)
                    return
                async with await client.chat.completions.create(
                    model="m", messages=_MESSAGES, stream=True
                ) as chunks:
                    async for _ in chunks:
                        pass

            calling = asyncio.create_task(call())
            await model.log.opened_count(1)
            if stream:
                await model.log.tokens_count(1)
            left = time.monotonic()
            calling.cancel()
            await model.log.closed_count(1)
            (record,) = model.log.calls
            assert record.cut
            assert record.closed is not None
            assert 0 <= record.closed - left < 1
            assert record.output_tokens < 100
            await client.close()

    asyncio.run(ask())


def test_scripts_of_a_model_are_taken_in_turn_and_the_last_one_stays() -> None:
    async def ask() -> None:
        async with ModelServer() as model:
            model.script("m", Script(status=500, first_token=0.0), Script(tokens=2))
            client = AsyncOpenAI(base_url=model.base_url, api_key="x", max_retries=0)
            with pytest.raises(InternalServerError):
                await client.chat.completions.create(model="m", messages=_MESSAGES)
            for _ in range(2):
                await client.chat.completions.create(model="m", messages=_MESSAGES)
            outputs = [call.output_tokens for call in model.log.calls]
            assert outputs == [0, 2, 2]
            await client.close()

    asyncio.run(ask())


def test_as_a_process_it_serves_its_log_and_ends_with_its_parents_pipe() -> None:
    async def serve() -> None:
        child = await Child.start("hangup.demo.model_server")
        try:
            child.serve({})
            log = await get_json(f"{child.url}/log")
            assert log["calls"] == []
            assert abs(log["now"] - time.monotonic()) < 5.0
        finally:
            await child.stop()
        with pytest.raises(ConnectionError):
            await get_json(f"{child.url}/log")

    asyncio.run(serve())


def test_a_child_that_cannot_start_says_which_one() -> None:
    async def start() -> None:
        await Child.start("hangup.demo.model_server", "--provider-on-close", "maybe")

    with pytest.raises(RuntimeError, match=r"hangup\.demo\.model_server ended with"):
        asyncio.run(start())
