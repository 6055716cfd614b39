"""A model server that writes down what it generated when.

It speaks OpenAI's chat completions and Anthropic's messages.

In tests::

    async with ModelServer() as model:
        model.script("gpt-4o-mini", Script(tokens=40, rate=20))
        ...  # point an SDK at model.base_url (OpenAI) or model.url (Anthropic)
        await model.log.closed_count(1)

As a process of its own: ``python -m hangup.demo.model_server`` (see
:mod:`hangup.demo.service`).
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import time
from collections import deque
from typing import TYPE_CHECKING, Self

from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

from hangup.demo.brain import Script
from hangup.demo.chat import Chat
from hangup.demo.completions import Completions
from hangup.demo.journal import ModelLog
from hangup.demo.messages import Messages
from hangup.demo.service import QuietServer, listen, serve_process
from hangup.demo.workload import SCRIPT

if TYPE_CHECKING:
    from types import TracebackType

    from starlette.requests import Request

    from hangup.demo.workload import OnClose


class ModelServer:
    """A model on a loopback port chosen by the system.

    An async context manager, used on one event loop. Leaving it hangs up on calls
    that still run.

    Args:
        seed: Seeds what a request does not seed itself.
        default: The script of models that have none of their own.
        on_close: Whether generating ends when the caller hangs up.
        keep: How many calls the log keeps, the latest; None keeps all.

    Attributes:
        log: What was generated when.
        app: The ASGI app, to be served by other means.
    """

    def __init__(
        self,
        *,
        seed: int = 0,
        default: Script | None = None,
        on_close: OnClose = "stop",
        keep: int | None = None,
    ) -> None:
        self.log = ModelLog(keep)
        self._default = default or Script()
        self._scripts: dict[str, deque[Script]] = {}
        self._endpoints = {
            dialect.path: Completions(
                self.log, self._script_for, dialect, seed=seed, on_close=on_close
            )
            for dialect in (Chat(), Messages())
        }
        self.app = Starlette(
            routes=[
                *(
                    Route(path, endpoint, methods=["POST"])
                    for path, endpoint in self._endpoints.items()
                ),
                Route("/v1/models", self._models),
                Route("/log", self._log),
            ]
        )
        self._port = 0
        self._server: QuietServer | None = None
        self._serving: asyncio.Task[None] | None = None

    def script(self, model: str, *scripts: Script) -> None:
        """Answer calls to ``model`` by these in turn; the last one stays."""
        self._scripts[model] = deque(scripts)

    @property
    def url(self) -> str:
        """``http://127.0.0.1:PORT``, an Anthropic client's; the log is at ``/log``."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def base_url(self) -> str:
        """What an OpenAI client takes as its ``base_url``."""
        return f"{self.url}/v1"

    async def __aenter__(self) -> Self:
        """Serve."""
        sock = listen()
        self._port = sock.getsockname()[1]
        self._server = QuietServer.of(self.app)
        self._serving = asyncio.create_task(self._server.serve([sock]))
        await self._server.ready.wait()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop serving."""
        if self._server is not None and self._serving is not None:
            for endpoint in self._endpoints.values():
                endpoint.stopping.set()
            self._server.hang_up()
            await self._serving

    def _script_for(self, model: str) -> Script:
        scripts = self._scripts.get(model)
        if not scripts:
            return self._default
        return scripts.popleft() if len(scripts) > 1 else scripts[0]

    async def _models(self, _request: Request) -> JSONResponse:
        models = [{"id": name, "object": "model"} for name in sorted(self._scripts)]
        return JSONResponse({"object": "list", "data": models})

    async def _log(self, request: Request) -> JSONResponse:
        prefix = request.query_params.get("user", "")
        calls = [
            call.to_json() for call in self.log.calls if call.user.startswith(prefix)
        ]
        return JSONResponse({"now": time.monotonic(), "calls": calls})


def main() -> None:
    """Serve as one of the demo's processes."""
    parser = argparse.ArgumentParser(description="The demo's model server.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--provider-on-close", choices=("stop", "finish"), default="stop"
    )
    parser.add_argument("--first-token", type=float, default=SCRIPT.first_token)
    parser.add_argument("--keep", type=int)
    args = parser.parse_args()
    model = ModelServer(
        seed=args.seed,
        default=dataclasses.replace(SCRIPT, first_token=args.first_token),
        on_close=args.provider_on_close,
        keep=args.keep,
    )
    serve_process(lambda _peers: model.app)


if __name__ == "__main__":
    main()
