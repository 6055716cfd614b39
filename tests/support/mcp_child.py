"""The child of ``support.mcp_kin``: an MCP server over streamable HTTP."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from mcp import ClientSession, StdioServerParameters, stdio_client
from mcp.server import MCPServer
from support.mcp_kin import Kin

import hangup
from hangup.servers.mcp import protect

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

kin = Kin("child")
_GRANDCHILD = StdioServerParameters(
    command=sys.executable,
    args=[str(Path(__file__).with_name("mcp_grandchild.py"))],
    env=dict(os.environ),
)


@contextlib.asynccontextmanager
async def lifespan(_server: MCPServer) -> AsyncIterator[ClientSession]:
    """Keep a grandchild, and one session to it that every request uses."""
    await kin.prepare()
    async with stdio_client(_GRANDCHILD) as streams, ClientSession(*streams) as session:
        await session.initialize()
        sessions.append(session)
        yield session


sessions: list[ClientSession] = []
server: MCPServer = MCPServer("child", log_level="ERROR", lifespan=lifespan)


async def _research(scenario: str) -> str:
    dig = sessions[0].call_tool("dig", {"scenario": scenario})
    answers = await hangup.gather(kin.ask(scenario), dig)
    return str(answers[0])


@server.tool()
async def research(scenario: str) -> str:
    """Ask the model, and at the same time the grandchild."""
    return await _research(scenario)


@server.tool()
async def watched_research(scenario: str) -> str:
    """Do the same in a process that only looks on."""
    return await _research(scenario)


protect(server, mode="enforce", tools={"watched_research": {"mode": "observe"}})
app = server.streamable_http_app()
