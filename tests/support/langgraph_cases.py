"""Graphs that no example would have: nodes and tools of which one fails.

Served by ``framework_server.py`` as the examples are, in the environment that has
LangGraph; so nothing here is checked for types.
"""

# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202

from __future__ import annotations

import asyncio
import operator
from collections import defaultdict
from typing import Annotated, TypedDict

from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from opentelemetry.instrumentation.genai.langchain import LangChainInstrumentor
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

import hangup
from hangup.servers.asgi import HangupMiddleware

hangup.instrument()
LangChainInstrumentor().instrument()

model = ChatOpenAI(model="gpt-4o-mini", streaming=True, stream_usage=True)


under_way = defaultdict(asyncio.Event)


async def ask(which, topic):
    pieces = []
    async for piece in model.astream(f"{which} of {topic}"):
        under_way[which, topic].set()
        pieces.append(piece.text)
    return "".join(pieces)


@tool
async def broken(topic: str) -> str:
    """Fail, when the others are under way."""
    await under_way["first", topic].wait()
    await under_way["second", topic].wait()
    raise RuntimeError(f"out of order: {topic}")


@tool
async def first(topic: str) -> str:
    """Ask a model."""
    return await ask("first", topic)


@tool
async def second(topic: str) -> str:
    """Ask a model."""
    return await ask("second", topic)


async def think(state):
    bound = model.bind_tools([broken, first, second])
    return {"messages": [await bound.ainvoke(state["messages"])]}


tools = (
    StateGraph(MessagesState)
    .add_node(think)
    .add_node("tools", ToolNode([broken, first, second]))
    .add_edge(START, "think")
    .add_conditional_edges("think", tools_condition)
    .add_edge("tools", "think")
    .compile()
)


class Nodes(TypedDict):
    topic: str
    found: Annotated[list[str], operator.add]


def node(one):
    async def run(state):
        return {"found": [await one.ainvoke({"topic": state["topic"]})]}

    return run


nodes = (
    StateGraph(Nodes)
    .add_node("broken", node(broken))
    .add_node("first", node(first))
    .add_node("second", node(second))
    .add_edge(START, "broken")
    .add_edge(START, "first")
    .add_edge(START, "second")
    .compile()
)


async def in_tools(request):
    said = {"messages": [("user", (await request.json())["text"])]}
    await tools.ainvoke(said)
    return JSONResponse({"answer": ""})


async def in_nodes(request):
    await nodes.ainvoke({"topic": (await request.json())["text"]})
    return JSONResponse({"answer": ""})


app = HangupMiddleware(
    Starlette(
        routes=[
            Route("/tools/{thread}", in_tools, methods=["POST"]),
            Route("/nodes/{thread}", in_nodes, methods=["POST"]),
        ],
    )
)
