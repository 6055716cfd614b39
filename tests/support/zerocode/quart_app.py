"""Quart."""

from __future__ import annotations

from quart import Quart
from support.zerocode.agent import answer

app = Quart(__name__)


@app.get("/ask/<thread>")
async def ask(thread: str) -> dict[str, str]:
    return {"answer": await answer(thread)}
