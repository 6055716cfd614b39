"""A stock agent on FastAPI, started with ``opentelemetry-instrument uvicorn``."""

from __future__ import annotations

import os

from fastapi import FastAPI
from openai import AsyncOpenAI

from hangup.servers.asgi import HangupMiddleware

api = FastAPI()
client = AsyncOpenAI(api_key="x", base_url=os.environ["MODEL_URL"] + "/v1")


@api.get("/ask")
async def ask() -> str | None:
    completion = await client.chat.completions.create(
        model="gpt-4o-mini", messages=[{"role": "user", "content": "Well?"}]
    )
    return completion.choices[0].message.content


app = HangupMiddleware(api)
