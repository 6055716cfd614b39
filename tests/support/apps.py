"""Applications that are imported by name, for servers in processes of their own."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

import hangup
from hangup.servers.asgi import HangupMiddleware

if TYPE_CHECKING:
    from starlette.requests import Request


async def agent(request: Request) -> Response:
    """Spend, and take as long as asked."""
    hangup.check()
    await asyncio.sleep(float(request.query_params["seconds"]))
    return JSONResponse({"answer": 42})


app = HangupMiddleware(Starlette(routes=[Route("/agent", agent)]), budget=0.5)
