"""Serve an example as its user does, and tell what hangup counted.

``framework_server.py MODULE FD`` sets OpenTelemetry up, as ``opentelemetry-instrument``
or the user's own code does, imports the example and serves its ``app`` under uvicorn
on a socket that listens already. Beside the app's own paths, and not seen by hangup:
``GET /-/books`` and ``POST /-/kill``, which kills every run.
"""

from __future__ import annotations

import importlib
import json
import socket
import sys
from typing import TYPE_CHECKING, Any

import uvicorn
from opentelemetry import metrics, trace

from hangup.core import guard, registry
from hangup.otel import names
from hangup.testing import Telemetry

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, MutableMapping

    Message = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[Message]]
    Send = Callable[[Message], Awaitable[None]]

_TOTALS = {
    "unsettled": (names.UNSETTLED, {}),
    "swallowed": (names.SWALLOWED, {}),
    "refused": (names.REFUSALS, {names.DECISION: "refuse"}),
    "wasted output": (
        names.TOKENS,
        {names.FATE: "wasted", names.TOKEN_TYPE: "output"},
    ),
    "attributed": (names.TOKENS, {}),
    "metered": (names.METERED_TOKENS, {}),
    "tools": (names.CALLS, {names.CALL_KIND: "tool"}),
}


class _Control:
    """The app, and what the test asks of its process."""

    def __init__(self, app: Any, recorded: Telemetry) -> None:
        self._app = app
        self._recorded = recorded

    async def __call__(
        self, scope: MutableMapping[str, Any], receive: Receive, send: Send
    ) -> None:
        path = scope.get("path", "")
        if not path.startswith("/-/"):
            await self._app(scope, receive, send)
            return
        found = {"/-/books": self._books, "/-/kill": self._kill}[path]()
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        body = json.dumps(found).encode()
        await send({"type": "http.response.body", "body": body})

    def _books(self) -> dict[str, float]:
        value = self._recorded.value
        found = {key: value(name, labels) for key, (name, labels) in _TOTALS.items()}
        for point in self._recorded.points(names.TOKENS):
            about = dict(point.attributes)
            if about[names.FATE] == "wasted" and about[names.TOKEN_TYPE] == "output":
                key = f"wasted output {about[names.RUN_NAME]}"
                found[key] = found.get(key, 0) + point.value
        for point in self._recorded.points(names.RUNS):
            about = dict(point.attributes)
            outcome, cause = about[names.OUTCOME], about[names.CAUSE]
            key = outcome if cause == "none" else f"{outcome} {cause}"
            found[key] = found.get(key, 0) + point.value
        found["live"] = len(registry.live_runs())
        return found

    def _kill(self) -> dict[str, float]:
        runs = registry.live_runs()
        for run in runs:
            run.cancel("killed", "by the test")
        return {"killed": len(runs)}


def main() -> None:
    """Serve."""
    module, descriptor = sys.argv[1:]
    guard.strict(True)  # noqa: FBT003  a switch
    recorded = Telemetry()
    trace.set_tracer_provider(recorded.tracer_provider)
    metrics.set_meter_provider(recorded.meter_provider)
    app = _Control(importlib.import_module(module).app, recorded)
    config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=3)
    uvicorn.Server(config).run(sockets=[socket.socket(fileno=int(descriptor))])


if __name__ == "__main__":
    main()
