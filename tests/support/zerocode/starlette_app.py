"""Starlette."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route
from support.zerocode.agent import answer

if TYPE_CHECKING:
    from starlette.requests import Request


async def ask(request: Request) -> JSONResponse:
    return JSONResponse({"answer": await answer(request.path_params["thread"])})


app = Starlette(routes=[Route("/ask/{thread}", ask)])
