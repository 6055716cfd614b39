"""FastAPI."""

from __future__ import annotations

from fastapi import FastAPI
from support.zerocode.agent import answer

app = FastAPI()


@app.get("/ask/{thread}")
async def ask(thread: str) -> dict[str, str]:
    return {"answer": await answer(thread)}
