"""An agent of three model calls, the first a stream. As its author wrote it."""

from __future__ import annotations

import os

from openai import AsyncOpenAI

_client = AsyncOpenAI(base_url=os.environ["MODEL"], api_key="test", max_retries=0)


async def answer(thread: str) -> str:
    """Ask the model three times, each time with what it said before."""
    tag = {"X-Demo-User": thread}
    said = ""
    stream = await _client.chat.completions.create(
        model="gpt-4o-mini",
        messages=[{"role": "user", "content": "Well?"}],
        stream=True,
        stream_options={"include_usage": True},
        extra_headers=tag,
    )
    async for chunk in stream:
        if chunk.choices:
            said += chunk.choices[0].delta.content or ""
    for _ in range(2):
        completion = await _client.chat.completions.create(
            model="gpt-4o-mini",
            messages=[{"role": "user", "content": said}],
            extra_headers=tag,
        )
        said += completion.choices[0].message.content or ""
    return said
