"""An MCP server whose tools stop when whoever called them stops waiting.

    python mcp_server.py            # on standard input and output
    uvicorn mcp_server:app          # over streamable HTTP, at /mcp

Its client's deadline and cancels reach ``research`` and the model call in it.
``publish`` says that it destroys something: begun it is finished.
"""

import asyncio

from mcp.server import MCPServer
from mcp.types import ToolAnnotations
from openai import AsyncOpenAI
from opentelemetry.instrumentation.genai.openai import OpenAIInstrumentor

import hangup
from hangup.servers.mcp import protect

hangup.instrument()
OpenAIInstrumentor().instrument()

server = protect(MCPServer("library", log_level="ERROR"), budget=60)
model = AsyncOpenAI(max_retries=1)


@server.tool()
async def research(topic: str) -> str:
    """Find out about a topic."""
    question = {"role": "user", "content": f"What is there to know about {topic}?"}
    answer = await model.chat.completions.create(
        model="gpt-4o-mini", messages=[question]
    )
    return answer.choices[0].message.content


@server.tool(annotations=ToolAnnotations(destructive_hint=True))
async def publish(text: str) -> str:
    """Replace what is published, for good."""
    await asyncio.sleep(0.1)  # the old text is gone
    await asyncio.sleep(0.1)  # the new one is there
    return f"{len(text)} characters are published"


app = server.streamable_http_app()

if __name__ == "__main__":
    server.run("stdio")
