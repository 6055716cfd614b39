"""The grandchild of ``support.mcp_kin``: an MCP server on standard input and output."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from mcp.server import MCPServer
from support.mcp_kin import Kin

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

kin = Kin("grandchild", mode="enforce")


@contextlib.asynccontextmanager
async def lifespan(_server: MCPServer) -> AsyncIterator[None]:
    await kin.prepare()
    yield


server: MCPServer = MCPServer("grandchild", log_level="ERROR", lifespan=lifespan)


@server.tool()
async def dig(scenario: str) -> str:
    """Ask the model, and nobody else."""
    return await kin.ask(scenario)


if __name__ == "__main__":
    server.run("stdio")
