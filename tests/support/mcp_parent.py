"""The parent of ``support.mcp_kin``: an agent behind HTTP, with an MCP client.

The child is at ``CHILD``. It is asked through a session that every request uses: one of
the 2026 protocol, or one of those before it.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any

from mcp import Client, ClientSession
from mcp.client.streamable_http import streamable_http_client
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from support.mcp_kin import BUDGET, Kin

import hangup
from hangup.servers.asgi import HangupMiddleware

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.requests import Request

kin = Kin("parent")
clients: dict[str, Client | ClientSession] = {}

SCENARIOS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "warm": ("modern", "research", {}),
    "warm-legacy": ("legacy", "research", {}),
    "walk": ("modern", "research", {}),
    "walk-legacy": ("legacy", "research", {}),
    "deadline": ("modern", "research", {"budget": BUDGET}),
    "deadline-legacy": ("legacy", "research", {"budget": BUDGET}),
    "child-observes": ("modern", "watched_research", {}),
    "late-child": ("modern", "watched_research", {"budget": BUDGET}),
    "orphans": ("modern", "research", {}),
    "parent-observes": ("modern", "research", {"mode": "observe"}),
}
"""Which session, which tool, and the settings of the route."""


@contextlib.asynccontextmanager
async def lifespan(_app: Starlette) -> AsyncIterator[None]:
    await kin.prepare()
    url = os.environ["CHILD"]
    async with (
        Client(url) as modern,
        streamable_http_client(url) as streams,
        ClientSession(*streams) as legacy,
    ):
        await legacy.initialize()
        clients.update(modern=modern, legacy=legacy)
        yield


async def answer(request: Request) -> Response:
    """Ask the model, and at the same time the child."""
    scenario = request.path_params["scenario"]
    which, tool, _ = SCENARIOS[scenario]
    call = clients[which].call_tool(tool, {"scenario": scenario})
    await hangup.gather(kin.ask(scenario), call)
    return JSONResponse({})


app = HangupMiddleware(
    Starlette(routes=[Route("/{scenario}", answer)], lifespan=lifespan),
    routes={
        f"/{scenario}": {"name": scenario, **settings}
        for scenario, (_, _, settings) in SCENARIOS.items()
    },
)
