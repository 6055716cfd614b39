"""The scenarios of a tool server: MCP over HTTP, client and server native."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from matrix.bench import Counted, Measured, expired, in_run, outcome
from support.servers import Served

if TYPE_CHECKING:
    from matrix.bench import Act, Scenarios

    from hangup.testing import Telemetry


async def run_tools(recorded: Telemetry) -> Scenarios:
    """Call a tool in a run that has time, and in one that has none."""
    ran: list[str] = []

    def lookup() -> str:
        """Look it up."""
        ran.append("lookup")
        return "found"

    tools = import_module("mcp.server").MCPServer("tools", log_level="ERROR")
    tools.tool()(lookup)
    found = {}

    async def measured(act: Act) -> Measured:
        before, counted = len(ran), Counted(recorded)
        what = Measured(error=await outcome(act))
        what.requests = len(ran) - before
        counted.into(what)
        return what

    with Served(tools.streamable_http_app(), lifespan="on") as served:
        async with import_module("mcp").Client(f"{served.url}/mcp") as client:

            async def call() -> None:
                await client.call_tool("lookup", {})

            found["whole"] = await measured(lambda: in_run(call))
            found["refused whole"] = await measured(lambda: expired(call))
    return found
