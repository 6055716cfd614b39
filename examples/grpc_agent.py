"""An agent behind gRPC that stops when its caller leaves, and the one that calls it.

    python grpc_agent.py serve 127.0.0.1:50051          # the one that asks a model
    python grpc_agent.py ask 127.0.0.1:50051 "What is SIGHUP?"

No code is generated: messages are JSON. With generated stubs nothing else changes. The
caller's run, its deadline of 20 seconds and its token go along with the call; Ctrl-C
there cancels the call, and with it the model's answer here.
"""

import asyncio
import json
import sys

import grpc
from openai import AsyncOpenAI
from opentelemetry.instrumentation.genai.openai import OpenAIInstrumentor

import hangup
from hangup.servers.grpc import AioInterceptor

hangup.instrument()
OpenAIInstrumentor().instrument()


def to_json(message):
    return json.dumps(message).encode()


class Researcher:
    """Serves ``/example.Researcher/Ask``: one question, an answer in pieces."""

    def __init__(self):
        self.client = AsyncOpenAI()

    async def ask(self, request, _context):
        stream = await self.client.chat.completions.create(
            model="gpt-4o-mini",
            messages=[{"role": "user", "content": request["question"]}],
            stream=True,
            stream_options={"include_usage": True},
        )
        async with stream:
            async for chunk in stream:
                if chunk.choices:
                    yield {"text": chunk.choices[0].delta.content or ""}


async def serve(address):
    method = grpc.unary_stream_rpc_method_handler(Researcher().ask, json.loads, to_json)
    handler = grpc.method_handlers_generic_handler(
        "example.Researcher", {"Ask": method}
    )
    server = grpc.aio.server(interceptors=[AioInterceptor(budget=60)])
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port(address)
    await server.start()
    print(f"serving on port {port}", flush=True)  # noqa: T201  a program that talks
    try:
        await server.wait_for_termination()
    finally:
        await server.stop(grace=5)


async def ask(address, question):
    async with (
        hangup.run(budget=20, name="ask"),
        grpc.aio.insecure_channel(address) as channel,
    ):
        asking = channel.unary_stream("/example.Researcher/Ask", to_json, json.loads)
        async for piece in asking({"question": question}):
            print(piece["text"], end="", flush=True)  # noqa: T201  same
    print()  # noqa: T201  same


if __name__ == "__main__":
    what, *arguments = sys.argv[1:]
    asyncio.run({"serve": serve, "ask": ask}[what](*arguments))
