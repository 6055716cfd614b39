"""The demo's research agent: a loop of plans, parallel tools, a subagent, an answer.

Code as anybody would write it. What hangup adds is one middleware, one
``hangup.instrument`` and ``hangup.gather`` in place of ``asyncio.gather``.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from typing import TYPE_CHECKING

import httpx
from opentelemetry import trace
from starlette.applications import Starlette
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route

import hangup
from hangup.demo import workload
from hangup.demo.brain import DELEGATE
from hangup.demo.llm import Model, Question, Talk, ToolUse, model_of, warm_up
from hangup.demo.service import Peers, serve_process
from hangup.demo.telemetry import PATH, USER, Telemetry
from hangup.servers.asgi import HangupMiddleware

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from contextlib import AbstractContextManager

    from starlette.requests import Request
    from starlette.types import ASGIApp


_TRACER = trace.get_tracer("hangup.demo.agent")


class Researcher:
    """Answers questions with a model, some tools and a subagent."""

    def __init__(self, model: Model, subagent: httpx.AsyncClient) -> None:
        self._model = model
        self._subagent = subagent

    async def research(self, question: Question) -> str:
        """Return the answer as one text."""
        with _span("invoke_agent", workload.RESEARCH, question):
            talk = await self._gather_notes(question, lambda _step: None)
            answer = await self._model.ask(question, workload.ANSWER, talk)
        return answer.text

    async def research_aloud(
        self,
        question: Question,
        emit: Callable[[str], None],
        say: Callable[[str], None],
    ) -> str:
        """Return the answer, having said it piece by piece, and each step before."""
        said = []
        with _span("invoke_agent", workload.RESEARCH, question):
            talk = await self._gather_notes(question, emit)
            pieces = self._model.pieces(question, workload.ANSWER, talk)
            async with contextlib.aclosing(pieces):
                async for piece in pieces:
                    say(piece)
                    said.append(piece)
        return "".join(said)

    async def _gather_notes(
        self, question: Question, emit: Callable[[str], None]
    ) -> Talk:
        talk = Talk("Answer the question; use your tools first.", question.text)
        for number in range(1, workload.ROUNDS + 1):
            path = workload.plan_path(number)
            plan = await self._model.ask(question, path, talk, workload.TOOLS)
            emit(path)
            if not plan.tools:
                break
            findings = await hangup.gather(
                *(self._use_tool(question, use) for use in plan.tools), limit=4
            )
            talk.rounds.append((plan, findings))
        return talk

    async def _use_tool(self, question: Question, use: ToolUse) -> str:
        with _span("execute_tool", use.name, question):
            return await self._work(question, use.name, use.arguments)

    async def _work(self, question: Question, tool: str, arguments: str) -> str:
        if tool == DELEGATE:
            response = await self._subagent.post(
                "/work", json=question.body(), headers=question.headers()
            )
            return str(response.raise_for_status().json()["findings"])
        await asyncio.sleep(workload.work_seconds(question.seed, tool))
        if tool == "calculate":
            return f"The result for {arguments} is {question.seed % 1000}."
        text = f"{question.text}\n\n{arguments}"
        talk = Talk(f"Report what the {tool} found.", text)
        if tool == "search":
            return (await self._model.ask(question, tool, talk)).text
        pieces = self._model.pieces(question, tool, talk)
        async with contextlib.aclosing(pieces):
            return "".join([piece async for piece in pieces])


class Routes:
    """The agent's two ways to answer."""

    def __init__(self, researcher: Researcher) -> None:
        self._researcher = researcher
        self._workers: set[asyncio.Task[None]] = set()

    async def whole(self, request: Request) -> JSONResponse:
        """``POST /MODE/research``: nothing until all of it."""
        question = Question.of(request.headers, await request.json())
        answer = await self._researcher.research(question)
        return JSONResponse({"answer": answer})

    async def stream(self, request: Request) -> StreamingResponse:
        """``POST /MODE/research/stream``: steps and pieces as server-sent events.

        The work is a task of its own that fills a queue: the usual shape, and the
        one that goes on working when nobody reads the queue any more.
        """
        question = Question.of(request.headers, await request.json())
        queue: asyncio.Queue[dict[str, str] | None] = asyncio.Queue()
        worker = asyncio.create_task(self._fill(question, queue))
        self._workers.add(worker)
        worker.add_done_callback(self._workers.discard)
        return StreamingResponse(
            self._events(queue, worker), media_type="text/event-stream"
        )

    async def _fill(
        self, question: Question, queue: asyncio.Queue[dict[str, str] | None]
    ) -> None:
        try:
            answer = await self._researcher.research_aloud(
                question,
                lambda step: queue.put_nowait({"step": step}),
                lambda piece: queue.put_nowait({"text": piece}),
            )
            queue.put_nowait({"answer": answer})
        finally:
            queue.put_nowait(None)

    async def _events(
        self, queue: asyncio.Queue[dict[str, str] | None], worker: asyncio.Task[None]
    ) -> AsyncIterator[str]:
        while (event := await queue.get()) is not None:
            yield f"data: {json.dumps(event)}\n\n"
        await worker  # its error, if any, is this response's


def make_app(peers: Peers, provider: str, telemetry: Telemetry) -> ASGIApp:
    """Return the agent, with hangup's middleware around it.

    The first part of the path is hangup's mode, so that one process can serve both
    passes; a service would have one mode, or one for each route.

    Args:
        peers: The URLs of ``model`` and ``subagent``.
        provider: Whose client asks the model.
        telemetry: This process's.
    """
    model = model_of(provider, peers["model"])
    subagent = httpx.AsyncClient(base_url=peers["subagent"], timeout=30.0)
    routes = Routes(Researcher(model, subagent))

    @contextlib.asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        await warm_up(model)
        async with subagent:
            yield
        await model.aclose()

    app = Starlette(
        routes=[
            Route("/{mode}/research", routes.whole, methods=["POST"]),
            Route("/{mode}/research/stream", routes.stream, methods=["POST"]),
        ],
        lifespan=lifespan,
    )
    modes = {f"/{mode}/*": {"mode": mode} for mode in workload.MODES}
    return telemetry.beside(
        HangupMiddleware(app, budget=workload.EDGE_BUDGET, routes=modes)
    )


def _span(
    operation: str, name: str, question: Question
) -> AbstractContextManager[trace.Span]:
    """Open a span of the agent's own, as the semantic conventions name it."""
    kind = "agent" if operation == "invoke_agent" else "tool"
    attributes = {
        "gen_ai.operation.name": operation,
        f"gen_ai.{kind}.name": name,
        USER: question.user,
        PATH: name,
    }
    return _TRACER.start_as_current_span(f"{operation} {name}", attributes=attributes)


def main() -> None:
    """Serve as one of the demo's processes.

    The arguments are the model's provider and, if it is to be scraped, a port for that.
    """
    provider, *port = sys.argv[1:]
    telemetry = Telemetry(provider, *map(int, port))
    serve_process(lambda peers: make_app(peers, provider, telemetry))


if __name__ == "__main__":
    main()
