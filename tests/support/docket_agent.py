"""An agent behind docket: imported by who adds tasks, and by the worker."""

from __future__ import annotations

import asyncio
import os
from datetime import timedelta

from docket import Docket, Retry
from openai import AsyncOpenAI

NAME = "agent"
URL = "BROKER"
"""The environment variable with the URL of the Redis."""


async def _ask(model: str) -> str:
    client = AsyncOpenAI(base_url=os.environ["MODEL"], api_key="test", max_retries=0)
    async with client:
        stream = await client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": "Well?"}],
            stream=True,
            stream_options={"include_usage": True},
        )
        async with stream:
            return "".join(
                [
                    chunk.choices[0].delta.content or ""
                    async for chunk in stream
                    if chunk.choices
                ]
            )


async def ask(model: str) -> str:
    """Stream one model call."""
    return await _ask(model)


async def again(
    model: str,
    retry: Retry = Retry(attempts=5, delay=timedelta(seconds=3)),  # noqa: B008
) -> str:
    """Make a call, and fail."""
    await _ask(model)
    raise LookupError(model)


async def first(model: str) -> str:
    """Make a call, and then two more, of which one in a task of its own."""
    await _ask(model)
    return "".join(await asyncio.gather(_ask(model), asyncio.create_task(_ask(model))))


async def calm() -> str:
    """Make no call at all."""
    return "calm"


TASKS = (ask, again, first, calm)


def docket(url: str) -> Docket:
    """Return the docket at this URL, to be entered."""
    made = Docket(name=NAME, url=url)
    for task in TASKS:
        made.register(task)
    return made
