"""A run that a handler opens and that is stopped: its caller is told the cause."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from support.agents import plain_bhm
from support.telemetry import chat, instrumented

import hangup
from hangup.otel import names
from hangup.servers.asgi import HangupMiddleware

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request
    from support.telemetry import Telemetry

    Handler = Callable[[Request], Any]


def _starlette(handler: Handler, *middleware: Middleware) -> Any:
    return Starlette(routes=[Route("/chat", handler)], middleware=middleware)


def _fastapi(handler: Handler) -> Any:
    app = FastAPI()
    app.add_route("/chat", handler)
    return app


STACKS: dict[str, Callable[[Handler], Any]] = {
    "starlette": lambda handler: HangupMiddleware(_starlette(handler)),
    "fastapi": lambda handler: HangupMiddleware(_fastapi(handler)),
    "bhm inside": lambda handler: HangupMiddleware(_starlette(handler, plain_bhm())),
    "ours inside": lambda handler: _starlette(handler, Middleware(HangupMiddleware)),
}


async def _get(app: Any) -> httpx.Response:
    # Whatever the application raises through reaches the server, which logs it.
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://agent") as http:
        return await http.get("/chat")


async def _stopped(telemetry: Telemetry, how: str) -> None:
    """A run of a handler's own, with one model call, that is stopped."""
    async with hangup.run(budget=0.05 if how == "late" else None, name="own") as run:
        with chat(telemetry.tracer()):
            pass
        if how == "superseded":
            run.cancel("superseded", "by a newer message")
        await asyncio.sleep(10)


@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize(
    ("how", "status", "cause"),
    [("late", 504, "deadline"), ("superseded", 409, "superseded")],
)
def test_its_caller_gets_the_cause_and_the_run_of_the_request_ends_by_it(
    stack: str, how: str, status: int, cause: str
) -> None:
    with instrumented() as telemetry:

        async def handler(request: Request) -> Response:
            await _stopped(telemetry, how)
            return JSONResponse({})

        answer = asyncio.run(_get(STACKS[stack](handler)))
        assert (answer.status_code, answer.headers["hangup-cause"]) == (status, cause)
        assert answer.json()["error"] == cause
        assert telemetry.abandoned() == {cause: 1}
        assert telemetry.total(names.RUNS) == 1


def test_a_handler_that_makes_an_answer_of_it_is_heard() -> None:
    with instrumented() as telemetry:

        async def handler(request: Request) -> Response:
            try:
                await _stopped(telemetry, "superseded")
            except hangup.RunAbandoned:
                return JSONResponse({"partial": True})
            return JSONResponse({})

        answer = asyncio.run(_get(STACKS["starlette"](handler)))
        assert (answer.status_code, answer.json()) == (200, {"partial": True})


def test_an_exception_handler_that_chooses_a_status_is_heard() -> None:
    with instrumented() as telemetry:

        async def handler(request: Request) -> Response:
            await _stopped(telemetry, "superseded")
            return JSONResponse({})

        app = _starlette(handler)

        def told(request: Request, error: Exception) -> Response:
            return JSONResponse({"own": True}, 503)

        app.add_exception_handler(hangup.RunAbandoned, told)
        answer = asyncio.run(_get(HangupMiddleware(app)))
        assert (answer.status_code, answer.json()) == (503, {"own": True})


def test_an_error_of_the_handlers_own_stays_a_500() -> None:
    with instrumented() as telemetry:

        async def handler(request: Request) -> Response:
            with chat(telemetry.tracer()):
                pass
            raise LookupError("mine")

        app = HangupMiddleware(_starlette(handler))
        with pytest.raises(LookupError, match="mine"):
            asyncio.run(_get(app))
        assert telemetry.abandoned() == {"failed": 1}


def test_the_stop_of_somebody_elses_run_is_an_error_like_any_other() -> None:
    """Such as of one that a handler waits for: this request was not stopped."""
    error = hangup.RunCancelled("f" * 32, "other", "killed", "", 1.0)
    with instrumented() as telemetry:

        async def handler(request: Request) -> Response:
            with chat(telemetry.tracer()):
                pass
            raise error

        app = HangupMiddleware(_starlette(handler))
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)

        async def get() -> int:
            http = httpx.AsyncClient(transport=transport, base_url="http://agent")
            async with http:
                return (await http.get("/chat")).status_code

        assert asyncio.run(get()) == 500
        assert telemetry.abandoned() == {"failed": 1}
