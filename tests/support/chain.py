"""One of several processes that call each other, to be imported by a server's process.

Which one is in the environment: ``ROLE`` is its name, ``NEXT`` the URL of the one it
calls (or empty), ``MODEL`` the OpenAI base URL, ``SKEW`` the seconds its wall clock is
wrong by. The first segment of a path is the scene, which is what the run is called
everywhere; the second says what to do. The mode of a scene in this process is that of
``MODES`` (JSON), else enforce. What happens when is written to the file ``JOURNAL``,
one JSON line each, and what the test says to all is a file beside it; what was booked
goes to files, see :mod:`support.books`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
from openai import AsyncOpenAI
from opentelemetry.instrumentation.genai.openai import OpenAIInstrumentor
from opentelemetry.instrumentation.httpx import HTTPXClientInstrumentor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.trace import TracerProvider
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from support.books import writing

import hangup
from hangup.core.clock import SYSTEM_CLOCK
from hangup.servers.asgi import HangupMiddleware

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.requests import Request

ROLE, NEXT = os.environ["ROLE"], os.environ["NEXT"]
_MODES: dict[str, str] = json.loads(os.environ.get("MODES", "{}"))
_JOURNAL = Path(os.environ["JOURNAL"])

_skew = float(os.environ.get("SKEW", "0"))
# The one clock of this process, before anybody has asked it: a machine whose wall clock
# was set wrongly.
SYSTEM_CLOCK.wall = lambda: time.time() + _skew


def write(what: str, scene: str = "", **more: object) -> None:
    """Write down that something happens now."""
    line = {"role": ROLE, "scene": scene, "what": what, "at": time.monotonic(), **more}
    with _JOURNAL.open("a") as journal:
        journal.write(json.dumps(line) + "\n")


class _Warnings(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        write("warning", said=record.getMessage())


logging.getLogger("hangup").addHandler(_Warnings())
_tracers = TracerProvider(shutdown_on_exit=False)
_others = MeterProvider(shutdown_on_exit=False)
hangup.instrument(tracer_provider=_tracers, meter_provider=writing())
for _instrumentor in (OpenAIInstrumentor(), HTTPXClientInstrumentor()):
    _instrumentor.instrument(tracer_provider=_tracers, meter_provider=_others)
_model = AsyncOpenAI(base_url=os.environ["MODEL"], api_key="test", max_retries=0)
_http = httpx.AsyncClient(timeout=60)
_runs: dict[str, Any] = {}


async def ask(scene: str, model: str) -> None:
    """Stream one model call to its end; the model's log tells scene and role."""
    stream = await _model.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "Well?"}],
        stream=True,
        stream_options={"include_usage": True},
        extra_headers={"X-Demo-User": scene, "X-Demo-Path": ROLE},
    )
    async with stream:
        async for _ in stream:
            pass


async def on(scene: str, what: str) -> None:
    """Have the next process do the same, where there is one."""
    if NEXT:
        # The agent's own timeout is not what stops it.
        (await _http.get(f"{NEXT}/{scene}/{what}")).raise_for_status()


async def together(scene: str) -> None:
    """Make the slow call when all are told to, however long each took to get here."""
    write("ready", scene)
    while not (_JOURNAL.parent / f"{scene}.go").exists():  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    await ask(scene, "slow")


async def work(request: Request) -> Response:
    """Work as the path says, and write down when it is over."""
    scene, what = request.path_params["scene"], request.path_params["what"]
    run = hangup.current_run()
    assert run is not None
    _runs[scene] = run
    write("begun", scene, mode=run.mode.value, left=run.remaining())
    try:
        if what == "spend":  # before, across and after what may happen meanwhile
            await ask(scene, "quick")
            await hangup.gather(together(scene), on(scene, what))
            await ask(scene, "quick")
        else:
            await hangup.gather(ask(scene, what), on(scene, what))
    finally:
        write("over", scene, cause=run.cause)
    return JSONResponse({"role": ROLE})


async def kill(request: Request) -> Response:
    """Stop a run of this process, as an operator would."""
    stopped = _runs[request.path_params["scene"]].cancel("killed", "by operator")
    return JSONResponse({"stopped": stopped})


@contextlib.asynccontextmanager
async def _lifespan(_app: Starlette) -> AsyncIterator[None]:
    # The first call imports for a good part of a second; the tests have less.
    await _model.models.list()
    assert _model.chat.completions
    write("up", pid=os.getpid())
    yield


class _App:
    """The agent, with the middleware of each scene around it, named by the scene."""

    def __init__(self) -> None:
        self._agent = Starlette(
            routes=[Route("/{scene}/{what}", work)], lifespan=_lifespan
        )
        self._aside = Starlette(routes=[Route("/kill/{scene}", kill)])
        self._scenes: dict[str, HangupMiddleware] = {}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        path = scope.get("path", "")
        if path.startswith("/kill/"):
            await self._aside(scope, receive, send)
            return
        scene = path.split("/")[1] if path else ""
        if scene not in self._scenes:
            mode = _MODES.get(scene, "enforce")
            self._scenes[scene] = HangupMiddleware(self._agent, mode=mode, name=scene)
        await self._scenes[scene](scope, receive, send)


app = _App()
