"""pydantic-ai: an agent that delegates to another, and tools that run side by side.

    export OPENAI_API_KEY=... OPENAI_BASE_URL=...
    uvicorn --app-dir examples pydantic_ai_agent:app
    curl localhost:8000/chat/one -d '{"text": "Which moons have an ocean?"}'

Hang up while it works: the handler, both agents and their tools stop, and no model is
asked again. The conversation goes on at the next request, because only messages of a
turn that came to its end are kept.
"""

from __future__ import annotations

import asyncio
import json
import os
from typing import TYPE_CHECKING

from pydantic_ai import Agent, RunContext, UsageLimits
from pydantic_ai.models.openai import OpenAIChatModel
from starlette.applications import Starlette
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route

import hangup
from hangup.servers.asgi import HangupMiddleware

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from pydantic_ai.messages import ModelMessage
    from starlette.requests import Request

hangup.instrument()
Agent.instrument_all()

model = OpenAIChatModel(os.environ.get("OPENAI_MODEL", "gpt-4o-mini"))
limits = UsageLimits(request_limit=100)
assistant = Agent(
    model, name="assistant", instructions="Look up what you do not know, then answer."
)
researcher = Agent(
    model, name="researcher", instructions="Search as often as you need to."
)
conversations: dict[str, list[ModelMessage]] = {}


async def search(query: str) -> str:
    """Stand in for a search engine."""
    await asyncio.sleep(0.3)
    return f"Three pages about {query}."


@assistant.tool_plain
@researcher.tool_plain
async def search_web(query: str) -> str:
    """Search the web."""
    return await search(query)


@researcher.tool_plain
async def search_papers(query: str) -> str:
    """Search scientific papers."""
    return await search(query)


@assistant.tool
async def research(context: RunContext, question: str) -> str:
    """Have a question looked into by the researcher."""
    result = await researcher.run(question, usage=context.usage, usage_limits=limits)
    return result.output


async def chat(request: Request) -> JSONResponse:
    """Answer one message of a conversation."""
    text, thread = (await request.json())["text"], request.path_params["thread"]
    result = await assistant.run(
        text, message_history=conversations.get(thread), usage_limits=limits
    )
    conversations[thread] = result.all_messages()
    return JSONResponse({"answer": result.output})


async def stream(request: Request) -> StreamingResponse:
    """Answer likewise, and tell of every step as it is made (server-sent events)."""
    text, thread = (await request.json())["text"], request.path_params["thread"]

    async def lines() -> AsyncIterator[str]:
        async with assistant.run_stream_events(
            text, message_history=conversations.get(thread), usage_limits=limits
        ) as events:
            async for event in events:
                if event.event_kind == "agent_run_result":
                    conversations[thread] = event.result.all_messages()
                    yield f"data: {json.dumps({'answer': event.result.output})}\n\n"
                elif event.event_kind == "function_tool_call":
                    yield f"data: {json.dumps({'step': event.part.tool_name})}\n\n"

    return StreamingResponse(lines(), media_type="text/event-stream")


app = HangupMiddleware(
    Starlette(
        routes=[
            Route("/chat/{thread}", chat, methods=["POST"]),
            Route("/stream/{thread}", stream, methods=["POST"]),
        ]
    ),
    budget=120,
)
