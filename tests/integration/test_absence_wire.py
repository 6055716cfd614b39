"""A stream that ends in the grace is split where its client left, to the byte."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest
from support.scripted import WITHIN, scripted
from support.telemetry import instrumented

import hangup
from hangup.otel import names

ASK: Any = {
    "model": "m",
    "messages": [{"role": "user", "content": "a question"}],
    "stream": True,
    "stream_options": {"include_usage": True},
}


@pytest.mark.parametrize("mode", ["observe", "enforce"])
@pytest.mark.parametrize("back", [False, True])
def test_a_stream_in_the_grace(
    mode: str,
    back: bool,  # noqa: FBT001  parametrized
) -> None:
    said: list[str] = []

    async def read(client: openai.AsyncOpenAI) -> None:
        async for chunk in await client.chat.completions.create(**ASK):
            said.extend(choice.delta.content or "" for choice in chunk.choices)

    async def main() -> None:
        async with (
            scripted() as provider,
            openai.AsyncOpenAI(base_url=provider.url, api_key="x") as client,
            hangup.run(mode=mode, on_disconnect="grace", grace=30) as run,
            asyncio.timeout(WITHIN),
        ):
            reading = asyncio.create_task(read(client))
            call = await provider.call()
            await call.begin()
            for word in ("one ", "two ", "three "):
                await call.say(word)
            while len(said) < 3:  # noqa: ASYNC110  the client's own loop fills it
                await asyncio.sleep(0)
            run.leave()
            await call.say("four ")
            await call.report(10, 40)
            await call.finish()
            await reading
            assert measured.total(names.TOKENS) == 0  # undecided
            if back:
                assert run.reattach()

    with instrumented() as measured:
        asyncio.run(main())
        if back:
            assert measured.tokens("delivered") == (10, 40)
        else:
            sunk, wasted = measured.tokens("sunk"), measured.tokens("wasted")
            assert (sunk[0], wasted[0]) == (10, 0)
            assert sunk[1] + wasted[1] == 40
            # Four pieces of about the same length: three of them had come.
            assert 25 <= sunk[1] <= 35
        assert measured.total(names.ESTIMATED_TOKENS) == 0
        assert measured.total(names.TOKENS) == 50
        assert measured.total(names.CALLS) == 1
