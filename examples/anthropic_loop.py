"""The Anthropic SDK alone: a tool loop that streams, with tools run side by side.

    export ANTHROPIC_API_KEY=... ANTHROPIC_BASE_URL=...
    uvicorn --app-dir examples anthropic_loop:app
    curl localhost:8000/chat/one -d '{"text": "Which moons have an ocean?"}'

Hang up while it works: the stream is closed, the tools and the loop that a tool runs
stop, and no model is asked again. The conversation goes on at the next request,
because it is kept when all tools of a turn have answered, never in between: the
provider refuses a history with a tool call that has no result.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

from anthropic import AsyncAnthropic
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

import hangup
from hangup.servers.asgi import HangupMiddleware

if TYPE_CHECKING:
    from anthropic.types import (
        MessageParam,
        ToolParam,
        ToolResultBlockParam,
        ToolUseBlock,
    )
    from starlette.requests import Request

hangup.instrument()  # the SDK reports its calls to OpenTelemetry by itself

MODEL = os.environ.get("ANTHROPIC_MODEL", "claude-haiku-4-5")
client = AsyncAnthropic()
conversations: dict[str, list[MessageParam]] = {}


def tool(name: str, description: str) -> ToolParam:
    """Describe a tool that takes a query."""
    schema = {
        "type": "object",
        "properties": {"query": {"type": "string"}},
        "required": ["query"],
    }
    return {"name": name, "description": description, "input_schema": schema}


SEARCH = [
    tool("search_web", "Search the web."),
    tool("search_papers", "Search scientific papers."),
]
TOOLS = [*SEARCH, tool("research", "Have a question looked into thoroughly.")]


async def search(query: str) -> str:
    """Stand in for a search engine."""
    await asyncio.sleep(0.3)
    return f"Three pages about {query}."


async def use(block: ToolUseBlock) -> ToolResultBlockParam:
    """Run a tool; the model is told of its errors."""
    hangup.check()  # nothing begins in a run that is over; it is no error of the tool
    failed = False
    try:
        query = str(block.input["query"])
        if block.name == "research":
            text = await loop([{"role": "user", "content": query}], SEARCH)
        else:
            text = await search(query)
    except Exception as error:  # noqa: BLE001  whatever it is, the model may try again
        text, failed = f"{type(error).__name__}: {error}", True
    return {
        "type": "tool_result",
        "tool_use_id": block.id,
        "content": text,
        "is_error": failed,
    }


async def loop(
    messages: list[MessageParam], tools: list[ToolParam], thread: str | None = None
) -> str:
    """Ask the model and run its tools until it answers; keep the thread's turns."""
    while True:
        async with client.messages.stream(
            model=MODEL, max_tokens=1024, messages=messages, tools=tools
        ) as stream:
            reply = await stream.get_final_message()
        uses = [block for block in reply.content if block.type == "tool_use"]
        messages = [*messages, {"role": "assistant", "content": reply.content}]
        if uses:
            results = await hangup.gather(*(use(block) for block in uses))
            messages.append({"role": "user", "content": results})
        if thread is not None:
            conversations[thread] = messages
        if not uses:
            return "".join(b.text for b in reply.content if b.type == "text")


async def chat(request: Request) -> JSONResponse:
    """Answer one message of a conversation."""
    text, thread = (await request.json())["text"], request.path_params["thread"]
    asked: MessageParam = {"role": "user", "content": text}
    messages = [*conversations.get(thread, []), asked]
    return JSONResponse({"answer": await loop(messages, TOOLS, thread)})


app = HangupMiddleware(
    Starlette(routes=[Route("/chat/{thread}", chat, methods=["POST"])]), budget=120
)
