"""An MCP server of two tools on standard input and output: ``add``, and one that hangs.

Run as a script it speaks the protocol by hand, so that a hundred of them start in no
time. With ``sdk`` as its first argument it is the SDK's own server, which takes seconds
to import. Any other argument only names the process.
"""

from __future__ import annotations

import json
import sys
from typing import Any


def answer(method: str, params: dict[str, Any]) -> dict[str, Any] | None:
    """Return the result of a request, None to let it hang."""
    if method == "initialize":
        return {
            "protocolVersion": params["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "tools", "version": "1"},
        }
    if method == "tools/list":
        schema = {"type": "object"}
        names = ("add", "hang")
        return {"tools": [{"name": name, "inputSchema": schema} for name in names]}
    if params["name"] == "hang":
        return None
    given = params["arguments"]
    return {"content": [{"type": "text", "text": str(given["a"] + given["b"])}]}


def by_hand() -> None:
    """Answer until standard input ends."""
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message:
            continue
        result = answer(message["method"], message.get("params") or {})
        if result is not None:
            reply = {"jsonrpc": "2.0", "id": message["id"], "result": result}
            sys.stdout.write(json.dumps(reply) + "\n")
            sys.stdout.flush()


def by_sdk() -> None:
    """Serve the same with the SDK."""
    import asyncio  # noqa: PLC0415  only this way of the two needs it

    from mcp.server import MCPServer  # noqa: PLC0415  same

    server: Any = MCPServer("tools", log_level="ERROR")

    @server.tool()  # type: ignore[untyped-decorator]
    def add(a: int, b: int) -> str:
        return str(a + b)

    @server.tool()  # type: ignore[untyped-decorator]
    async def hang() -> str:
        await asyncio.Event().wait()
        return ""

    server.run("stdio")


if __name__ == "__main__":
    if sys.argv[1] == "sdk":
        by_sdk()
    else:
        by_hand()
