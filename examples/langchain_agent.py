"""A LangChain agent that stops when its user leaves.

    opentelemetry-instrument uvicorn langchain_agent:app

``POST /chat/{thread}`` with ``{"text": ...}`` talks on a checkpointed thread. Tools
that fail are retried, and then the model is told; a stop is none of these failures.
"""

import asyncio

from langchain.agents import create_agent
from langchain.agents.middleware import ModelRetryMiddleware, ToolRetryMiddleware
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from opentelemetry.instrumentation.genai.langchain import LangChainInstrumentor
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

import hangup
from hangup.servers.asgi import HangupMiddleware

hangup.instrument()
LangChainInstrumentor().instrument()

model = ChatOpenAI(model="gpt-4o-mini")


@tool
async def look_up(topic: str) -> str:
    """Look a topic up."""
    await asyncio.sleep(0.5)
    return f"There is more to know about {topic}."


@tool
def survey(topic: str) -> str:
    """Ask five experts about a topic, one after the other."""
    # It blocks, so LangChain runs it in a thread, which nobody can stop: its next call
    # is refused.
    asked = (f"You are expert {number}. What of {topic}?" for number in range(1, 6))
    return "\n".join(model.invoke(text).text for text in asked)


researcher = create_agent(model, [look_up], name="researcher")


@tool
async def delegate(topic: str) -> str:
    """Have a researcher find out about a topic."""
    question = {"messages": [("user", f"Find out about {topic}.")]}
    return (await researcher.ainvoke(question))["messages"][-1].text


agent = create_agent(
    model,
    [look_up, survey, delegate],
    middleware=[
        ToolRetryMiddleware(max_retries=2, initial_delay=0.1),
        ModelRetryMiddleware(max_retries=2, initial_delay=0.1),
    ],
    checkpointer=InMemorySaver(),
)


async def chat(request):
    config = {"configurable": {"thread_id": request.path_params["thread"]}}
    said = {"messages": [("user", (await request.json())["text"])]}
    state = await agent.ainvoke(said, config)
    return JSONResponse({"answer": state["messages"][-1].text})


app = HangupMiddleware(
    Starlette(routes=[Route("/chat/{thread}", chat, methods=["POST"])])
)
