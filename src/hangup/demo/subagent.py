"""The demo's subagent: a service in a process of its own that checks claims."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING

from opentelemetry import trace
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

import hangup
from hangup.demo import workload
from hangup.demo.llm import Model, Question, Talk, model_of, warm_up
from hangup.demo.service import Peers, serve_process
from hangup.demo.telemetry import PATH, USER, Telemetry
from hangup.servers.asgi import HangupMiddleware

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.requests import Request
    from starlette.types import ASGIApp

_TRACER = trace.get_tracer("hangup.demo.subagent")


class Checker:
    """Finds claims, then checks two of them side by side."""

    def __init__(self, model: Model) -> None:
        self._model = model

    async def work(self, request: Request) -> JSONResponse:
        """``POST /work``: what the claims are worth."""
        question = Question.of(request.headers, await request.json())
        attributes = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.agent.name": "checker",
            USER: question.user,
            PATH: workload.SUBAGENT,
        }
        with _TRACER.start_as_current_span(
            "invoke_agent checker", attributes=attributes
        ):
            claims = await self._ask(question, workload.CLAIMS, "List the claims.")
            checked = await hangup.gather(
                *(
                    self._ask(question, path, "Check one claim.", claims)
                    for path in workload.CHECKS
                )
            )
        return JSONResponse({"findings": "\n".join(checked)})

    async def _ask(
        self, question: Question, path: str, instruction: str, *notes: str
    ) -> str:
        talk = Talk(instruction, "\n\n".join([question.text, *notes]))
        return (await self._model.ask(question, path, talk)).text


def make_app(peers: Peers, provider: str, telemetry: Telemetry) -> ASGIApp:
    """Return the subagent, with hangup's middleware around it.

    It enforces; a request whose run is only observed brings that mode along.

    Args:
        peers: The URL of ``model``.
        provider: Whose client asks the model.
        telemetry: This process's.
    """
    model = model_of(provider, peers["model"])

    @contextlib.asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        await warm_up(model)
        yield
        await model.aclose()

    app = Starlette(
        routes=[Route("/work", Checker(model).work, methods=["POST"])],
        lifespan=lifespan,
    )
    return telemetry.beside(HangupMiddleware(app))


def main() -> None:
    """Serve as one of the demo's processes.

    The arguments are the model's provider and, if it is to be scraped, a port for that.
    """
    provider, *port = sys.argv[1:]
    telemetry = Telemetry(provider, *map(int, port))
    serve_process(lambda peers: make_app(peers, provider, telemetry))


if __name__ == "__main__":
    main()
