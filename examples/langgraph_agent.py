"""A LangGraph agent that stops when its user leaves.

    opentelemetry-instrument uvicorn langgraph_agent:app

``POST /chat/{thread}`` with ``{"text": ...}`` talks on a checkpointed thread. ``POST
/report/{thread}`` runs two researchers side by side, each a subgraph in a node of its
own, and streams what they find.
"""

import asyncio
import json
import operator
from typing import Annotated, TypedDict

from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from opentelemetry.instrumentation.genai.langchain import LangChainInstrumentor
from sse_starlette import EventSourceResponse
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

import hangup
from hangup.servers.asgi import HangupMiddleware

hangup.instrument()
LangChainInstrumentor().instrument()

model = ChatOpenAI(model="gpt-4o-mini", stream_usage=True)


@tool
async def look_up(topic: str) -> str:
    """Look a topic up."""
    await asyncio.sleep(0.5)
    return f"There is more to know about {topic}."


def looping(tools, **options):
    """A model that calls tools until it has an answer."""

    async def think(state):
        return {"messages": [await model.bind_tools(tools).ainvoke(state["messages"])]}

    graph = StateGraph(MessagesState)
    graph.add_node("think", think)
    graph.add_node("tools", ToolNode(tools))
    graph.add_edge(START, "think")
    graph.add_conditional_edges("think", tools_condition)
    graph.add_edge("tools", "think")
    return graph.compile(**options)


researcher = looping([look_up])


async def ask(text):
    found = await researcher.ainvoke({"messages": [("user", text)]})
    return found["messages"][-1].content


@tool
async def delegate(topic: str) -> str:
    """Have a researcher find out about a topic."""
    return await ask(f"Find out about {topic}.")


class Report(TypedDict):
    text: str
    found: Annotated[list[str], operator.add]


async def news(state: Report):
    return {"found": [await ask(f"News: {state['text']}")]}


async def papers(state: Report):
    return {"found": [await ask(f"Papers: {state['text']}")]}


chat_graph = looping([look_up, delegate], checkpointer=InMemorySaver())
report_graph = (
    StateGraph(Report)
    .add_node(news)
    .add_node(papers)
    .add_edge(START, "news")
    .add_edge(START, "papers")
    .compile()
)


async def chat(request):
    config = {"configurable": {"thread_id": request.path_params["thread"]}}
    said = {"messages": [("user", (await request.json())["text"])]}
    state = await chat_graph.ainvoke(said, config)
    return JSONResponse({"answer": state["messages"][-1].content})


async def report(request):
    said = {"text": (await request.json())["text"]}

    async def events():
        async for update in report_graph.astream(said):
            yield {"data": json.dumps(update)}

    return EventSourceResponse(events())


app = HangupMiddleware(
    Starlette(
        routes=[
            Route("/chat/{thread}", chat, methods=["POST"]),
            Route("/report/{thread}", report, methods=["POST"]),
        ]
    )
)
