"""An agent behind HTTP that has its work done by an MCP server in another process.

    uvicorn mcp_agent:app

``GET /research/{topic}`` asks the server of ``mcp_server.py``, which this starts (or
the one at ``MCP_URL``). When the caller leaves, the call is cancelled there too, and
with it the model call it makes; the deadline of the request is the deadline of both.
"""

import contextlib
import os
import sys
from pathlib import Path

from mcp import Client, StdioServerParameters
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

import hangup
from hangup.servers.asgi import HangupMiddleware

hangup.instrument()

SERVER = StdioServerParameters(
    command=sys.executable,
    args=[str(Path(__file__).with_name("mcp_server.py"))],
    env=dict(os.environ),
)
sessions = []


@contextlib.asynccontextmanager
async def lifespan(_app):
    async with Client(os.environ.get("MCP_URL") or SERVER) as client:
        await client.list_tools()  # which of them must be finished, say
        sessions.append(client)
        yield


async def research(request):
    topic = request.path_params["topic"]
    found = await sessions[0].call_tool("research", {"topic": topic})
    await sessions[0].call_tool("publish", {"text": found.content[0].text})
    return JSONResponse({"found": found.content[0].text})


app = HangupMiddleware(
    Starlette(routes=[Route("/research/{topic}", research)], lifespan=lifespan),
    budget=30,
)
