"""docket: a service whose agents work in worker processes, on asyncio.

    export OPENAI_API_KEY=... REDIS_URL=redis://localhost
    docket worker --url $REDIS_URL --docket agents --tasks docket_agent:tasks
    uvicorn --app-dir examples docket_agent:app
    curl localhost:8000/research -d '{"questions": ["Why is the sky blue?"]}'

(with ``PYTHONPATH=examples`` for the worker). Hang up while they work: the tasks are
cancelled, those that have begun in the middle of their model calls, and what was spent
is on the books of the worker that spent it. ``note`` is added outside of the run, so it
is done whatever becomes of the request.
"""

from __future__ import annotations

import contextlib
import os

from docket import Docket
from openai import AsyncOpenAI
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

import hangup
from hangup.servers.asgi import HangupMiddleware

hangup.instrument()  # in the service and in the workers: both import this file

MODEL = os.environ.get("OPENAI_MODEL", "gpt-4o-mini")
queue = Docket(name="agents", url=os.environ.get("REDIS_URL", "redis://localhost"))


async def research(question: str) -> str:
    """Answer one question, in a worker."""
    async with AsyncOpenAI() as client:
        stream = await client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": question}], stream=True
        )
        return "".join(
            [c.choices[0].delta.content or "" async for c in stream if c.choices]
        )


async def note(questions: list[str]) -> None:
    """Keep what was asked; nobody waits for it."""
    print("asked: " + ", ".join(questions))  # noqa: T201  stands for a database


tasks = [research, note]


async def answer(request):
    """Have all questions researched at once."""
    questions = (await request.json())["questions"]
    async with hangup.run(name="research"):
        with hangup.detached():
            await queue.add(note)(questions)
        asked = [await queue.add(research)(question) for question in questions]
        answers = await hangup.gather(*(one.get_result() for one in asked))
        return JSONResponse({"answers": answers})


@contextlib.asynccontextmanager
async def lifespan(_app):
    """Keep the queue open while the service runs."""
    async with queue:
        yield


app = HangupMiddleware(
    Starlette(routes=[Route("/research", answer, methods=["POST"])], lifespan=lifespan),
    budget=120,
)
