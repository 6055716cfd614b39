"""Reading a long stream through openai's own client: what metering it adds.

The provider is a process of its own that sends the same canned stream, as fast as it is
read; only the reader's CPU time is measured.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from time import process_time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager

EVENTS = 10_000
HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
QUESTION: Any = {
    "model": "gpt-4o",
    "messages": [{"role": "user", "content": "Tell me a long story."}],
    "stream": True,
    "stream_options": {"include_usage": True},
}


class Stream:
    """Reads the stream; the provider is started for the first one."""

    def __init__(self) -> None:
        self._provider: subprocess.Popen[str] | None = None
        self._client: Any = None

    async def read(
        self, run: Callable[[], AbstractAsyncContextManager[object]]
    ) -> float:
        """Return the CPU seconds that one event took."""
        client = self._client or self._start()
        async with run():
            begun = process_time()
            stream = await client.chat.completions.create(**QUESTION)
            count = 0
            async for _ in stream:
                count += 1
            seconds = process_time() - begun
        assert count == EVENTS + 1, count
        return seconds / EVENTS

    def _start(self) -> Any:
        import openai  # noqa: PLC0415  only this case

        self._provider = subprocess.Popen(  # noqa: S603  this file, this Python
            [sys.executable, __file__], stdout=subprocess.PIPE, text=True
        )
        assert self._provider.stdout is not None
        url = self._provider.stdout.readline().strip()
        self._client = openai.AsyncOpenAI(base_url=url, api_key="x")
        return self._client

    def stop(self) -> None:
        """Stop the provider."""
        if self._provider is not None:
            self._provider.kill()
            self._provider.communicate()


def _body() -> bytes:
    words = ("one", "of", "the", "many", "words", "a", "model", "may", "say")
    head = {
        "id": "chatcmpl-AbCdEfGhIjKlMnOpQrStUv",
        "object": "chat.completion.chunk",
        "created": 1_750_000_000,
        "model": "gpt-4o-2024-08-06",
        "system_fingerprint": "fp_0123456789",
    }
    events = []
    for number in range(EVENTS):
        delta = {"content": f" {words[number % len(words)]}"}
        choice = {"index": 0, "delta": delta, "finish_reason": None}
        events.append({**head, "choices": [choice]})
    usage = {"prompt_tokens": 9, "completion_tokens": EVENTS, "total_tokens": EVENTS}
    events.append({**head, "choices": [], "usage": usage})
    frames = [f"data: {json.dumps(event)}\n\n".encode() for event in events]
    frames.append(b"data: [DONE]\n\n")
    # One event a chunk, as providers send them.
    chunks = [b"%x\r\n%b\r\n" % (len(frame), frame) for frame in frames]
    return HEAD + b"".join(chunks) + b"0\r\n\r\n"


async def _serve() -> None:
    body = _body()

    async def answer(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = head.lower().partition(b"content-length:")[2]
                await reader.readexactly(int(length.split(b"\r\n")[0]))
                writer.write(body)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    print(f"http://127.0.0.1:{port}/v1", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve())
