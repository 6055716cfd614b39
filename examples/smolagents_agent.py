"""smolagents: an agent with a managed agent and tools, which is all blocking code.

    export OPENAI_API_KEY=... OPENAI_BASE_URL=...
    uvicorn --app-dir examples smolagents_agent:app
    curl localhost:8000/chat/one -d '{"text": "Which moons have an ocean?"}'

Hang up while it works: a thread cannot be cut, so a tool or a model call that is under
way goes on to its end, but no other begins, and the run ends there. The conversation
goes on at the next request: that gets agents of its own, and the steps of the turns
that were answered.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from opentelemetry.instrumentation.genai.openai import OpenAIInstrumentor
from smolagents import LogLevel, OpenAIModel, Tool, ToolCallingAgent, tool
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse
from starlette.routing import Route

import hangup
from hangup.servers.asgi import HangupMiddleware

if TYPE_CHECKING:
    from smolagents.memory import MemoryStep
    from starlette.requests import Request

hangup.instrument()
OpenAIInstrumentor().instrument()

model = OpenAIModel(os.environ.get("OPENAI_MODEL", "gpt-4o-mini"))
conversations: dict[str, list[MemoryStep]] = {}


def search(query: str) -> str:
    """Stand in for a search engine."""
    time.sleep(0.3)
    return f"Three pages about {query}."


@tool
def search_web(query: str) -> str:
    """Search the web.

    Args:
        query: What to search for.
    """
    return search(query)


@tool
def search_papers(query: str) -> str:
    """Search scientific papers.

    Args:
        query: What to search for.
    """
    return search(query)


def agent(tools: list[Tool], **options: object) -> ToolCallingAgent:
    """Make an agent, which holds one conversation."""
    return ToolCallingAgent(
        tools, model, max_steps=100, verbosity_level=LogLevel.OFF, **options
    )


def answer(thread: str, text: str) -> str:
    """Answer one message of a conversation."""
    researcher = agent(
        [search_web, search_papers],
        name="researcher",
        description="Looks a question up thoroughly.",
    )
    assistant = agent([search_web], managed_agents=[researcher])
    assistant.memory.steps = list(conversations.get(thread, []))
    result = assistant.run(text, reset=False)
    conversations[thread] = assistant.memory.steps
    return str(result)


async def chat(request: Request) -> JSONResponse:
    """Answer in a thread, as the agent blocks."""
    text, thread = (await request.json())["text"], request.path_params["thread"]
    return JSONResponse({"answer": await run_in_threadpool(answer, thread, text)})


app = HangupMiddleware(
    Starlette(routes=[Route("/chat/{thread}", chat, methods=["POST"])]), budget=120
)
