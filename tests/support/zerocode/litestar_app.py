"""Litestar."""

from __future__ import annotations

from typing import Any

import litestar
from litestar import Request
from support.zerocode.agent import answer


@litestar.get("/ask/{thread:str}")
async def ask(request: Request[Any, Any, Any]) -> dict[str, str]:
    return {"answer": await answer(request.path_params["thread"])}


app = litestar.Litestar([ask])
