"""Celery: a service whose agents work in worker processes.

    export OPENAI_API_KEY=... REDIS_URL=redis://localhost
    celery --workdir examples -A celery_agent:queue worker
    uvicorn --app-dir examples celery_agent:app
    curl localhost:8000/research -d '{"questions": ["Why is the sky blue?"]}'

Hang up while they work: what no worker has begun is revoked, the model calls under way
are closed, and nothing is asked for any more; what was spent until then, and after, is
on the books of the worker that spent it. ``note`` is not awaited by anybody (its result
is ignored), so it is done whatever becomes of the request.
"""

from __future__ import annotations

import os

from celery import Celery, group
from openai import OpenAI
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

import hangup
from hangup.servers.asgi import HangupMiddleware

hangup.instrument()  # in the service and in the workers: both import this file

MODEL = os.environ.get("OPENAI_MODEL", "gpt-4o-mini")
REDIS = os.environ.get("REDIS_URL", "redis://localhost")
queue = Celery("celery_agent", broker=REDIS, backend=REDIS)


@queue.task
def research(question):
    """Answer one question, in a worker."""
    with OpenAI() as client:
        stream = client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": question}], stream=True
        )
        pieces = (chunk.choices[0].delta.content for chunk in stream if chunk.choices)
        return "".join(piece or "" for piece in pieces)


@queue.task(ignore_result=True)
def note(questions):
    """Keep what was asked; nobody waits for it."""
    print("asked: " + ", ".join(questions))  # noqa: T201  stands for a database


async def answer(request):
    """Have all questions researched at once."""
    questions = (await request.json())["questions"]
    async with hangup.run(name="research"):
        note.delay(questions)
        asked = group(research.s(question) for question in questions).apply_async()
        # A thread waits: Celery's own waiting blocks. A stop of the run wakes it.
        return JSONResponse({"answers": await hangup.to_thread(asked.get)})


app = HangupMiddleware(
    Starlette(routes=[Route("/research", answer, methods=["POST"])]), budget=120
)
