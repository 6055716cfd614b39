"""OpenAI Agents SDK: an agent that hands over, and tools that run side by side.

    export OPENAI_API_KEY=... OPENAI_BASE_URL=...
    uvicorn --app-dir examples openai_agents_agent:app
    curl localhost:8000/chat/one -d '{"text": "Which moons have an ocean?"}'

Hang up while it works: the handler, its agents and their tools stop, and no model is
asked again. The conversation goes on at the next request, because the SDK writes a
turn into the session when all of its tools have answered, never a part of one.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
from typing import TYPE_CHECKING

from agents import (
    Agent,
    Runner,
    SQLiteSession,
    function_tool,
    set_trace_processors,
)
from opentelemetry.instrumentation.genai.openai_agents import OpenAIAgentsInstrumentor
from starlette.applications import Starlette
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route

import hangup
from hangup.servers.asgi import HangupMiddleware

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.requests import Request

hangup.instrument()
set_trace_processors([])  # else the SDK sends every trace to OpenAI
OpenAIAgentsInstrumentor().instrument()

MODEL = os.environ.get("OPENAI_MODEL", "gpt-4o-mini")


async def search(query: str) -> str:
    """Stand in for a search engine."""
    await asyncio.sleep(0.3)
    return f"Three pages about {query}."


@function_tool
async def search_web(query: str) -> str:
    """Search the web."""
    return await search(query)


@function_tool
async def search_papers(query: str) -> str:
    """Search scientific papers."""
    return await search(query)


researcher = Agent(
    name="researcher",
    instructions="Search as often as you need to, then answer.",
    handoff_description="Looks things up.",
    model=MODEL,
    tools=[search_web, search_papers],
)
desk = Agent(
    name="desk",
    instructions="Answer small talk. Hand every question over to the researcher.",
    model=MODEL,
    handoffs=[researcher],
)


@functools.cache
def session(thread: str) -> SQLiteSession:
    """Keep a conversation, here in memory; with a path it would be kept on disk."""
    return SQLiteSession(thread)


async def chat(request: Request) -> JSONResponse:
    """Answer one message of a conversation."""
    text, thread = (await request.json())["text"], request.path_params["thread"]
    result = await Runner.run(desk, text, session=session(thread), max_turns=100)
    return JSONResponse({"answer": result.final_output})


async def stream(request: Request) -> StreamingResponse:
    """Answer likewise, and tell of every step as it is made (server-sent events)."""
    text, thread = (await request.json())["text"], request.path_params["thread"]

    async def events() -> AsyncIterator[str]:
        result = Runner.run_streamed(desk, text, session=session(thread), max_turns=100)
        async for event in result.stream_events():
            if event.type == "run_item_stream_event":
                yield f"data: {json.dumps({'step': event.name})}\n\n"
        yield f"data: {json.dumps({'answer': result.final_output})}\n\n"

    return StreamingResponse(events(), media_type="text/event-stream")


app = HangupMiddleware(
    Starlette(
        routes=[
            Route("/chat/{thread}", chat, methods=["POST"]),
            Route("/stream/{thread}", stream, methods=["POST"]),
        ]
    ),
    budget=120,
)
