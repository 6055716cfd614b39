"""A chat with threads, for several workers: a newer message stops the older one's work.

Which metrics it makes is said by the variables that OpenTelemetry knows; what users are
told is posted to the file ``POSTS``, a line of JSON for each answer.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openai import AsyncOpenAI
from opentelemetry import metrics, trace
from opentelemetry.instrumentation.genai.openai import OpenAIInstrumentor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.trace import TracerProvider
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

import hangup
from hangup.otel.workers import AutoWorkersMetricReader
from hangup.servers.asgi import HangupMiddleware

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.requests import Request

metrics.set_meter_provider(MeterProvider([AutoWorkersMetricReader()]))
trace.set_tracer_provider(TracerProvider())
hangup.instrument()
OpenAIInstrumentor().instrument()

POSTS = Path(os.environ["POSTS"])
client = AsyncOpenAI()


@contextlib.asynccontextmanager
async def warm(_app: object) -> AsyncIterator[None]:
    """What is imported with the first call takes half a second."""
    await client.models.list()
    assert client.chat.completions
    yield


async def ask(text: str, *, stream: bool) -> str:
    """Ask the model, and return its answer."""
    answer: Any = await client.chat.completions.create(
        model="gpt-4o-mini",
        messages=[{"role": "user", "content": text}],
        extra_headers={"X-Demo-User": text},
        stream=stream,
    )
    if not stream:
        return str(answer.choices[0].message.content)
    found = ""
    async with answer:
        async for chunk in answer:
            if chunk.choices:
                found += chunk.choices[0].delta.content or ""
    return found


async def message(request: Request) -> JSONResponse:
    """Answer a message of a user on a thread of theirs, and post the answer."""
    said = await request.json()
    thread = f"{said['user']}:{said['thread']}"
    async with hangup.run(supersede_key=thread):
        answer = await ask(said["text"], stream=said["stream"])
        post = {"thread": thread, "to": said["text"], "answer": answer}
        with POSTS.open("a") as posts:  # noqa: ASYNC230  it is one line
            posts.write(json.dumps(post) + "\n")
    return JSONResponse({**post, "worker": os.getpid()})


async def worker(_request: Request) -> JSONResponse:
    """Say which process answers."""
    return JSONResponse({"worker": os.getpid()})


routes = [Route("/messages", message, methods=["POST"]), Route("/worker", worker)]
app = HangupMiddleware(Starlette(routes=routes, lifespan=warm), budget=60)
