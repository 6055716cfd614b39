"""The example of an A2A agent, as a reader would run it."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import httpx
import pytest
from a2a.client import ClientConfig, ClientFactory
from a2a.types.a2a_pb2 import (
    AgentCapabilities,
    AgentCard,
    AgentInterface,
    Message,
    Part,
    Role,
    SendMessageRequest,
)
from support.rig import IN_TIME
from support.serving import serving

from hangup.demo.brain import Script
from hangup.demo.model_server import ModelServer

pytestmark = [pytest.mark.timeout(110), pytest.mark.wide]

EXAMPLES = Path(__file__).parents[2] / "examples"
MODEL = "gpt-4o-mini"
BRIEF = Script(tokens=5, input_tokens=20, rate=100, first_token=0.01)
LONG = Script(tokens=400, input_tokens=20, rate=20)


def test_the_model_call_of_an_a2a_agent_ends_with_who_reads_its_stream(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with ModelServer() as model, httpx.AsyncClient(timeout=60) as http:
            model.script(MODEL, BRIEF, LONG)
            paths = [str(EXAMPLES), *filter(None, [os.environ.get("PYTHONPATH")])]
            async with serving(
                "uvicorn",
                tmp_path,
                model.base_url,
                target="a2a_agent:app",
                environment={
                    "PYTHONPATH": os.pathsep.join(paths),
                    "OPENAI_BASE_URL": model.base_url,
                    "OPENAI_API_KEY": "test",
                },
            ) as agent:
                card = AgentCard(
                    name="researcher",
                    capabilities=AgentCapabilities(streaming=True),
                    supported_interfaces=[
                        AgentInterface(
                            url=f"{agent.url}/",
                            protocol_binding="JSONRPC",
                            protocol_version="1.0",
                        )
                    ],
                )
                config = ClientConfig(httpx_client=http, streaming=True)
                client = ClientFactory(config).create(card)
                said = Message(
                    message_id="1", role=Role.ROLE_USER, parts=[Part(text="Bees?")]
                )
                request = SendMessageRequest(message=said)
                kinds = [
                    event.WhichOneof("payload")
                    async for event in client.send_message(request)
                ]
                assert kinds == ["task", "artifact_update", "status_update"]
                stream = client.send_message(request)
                async for _ in stream:
                    break
                await model.log.opened_count(2)
                left = time.monotonic()
                await stream.aclose()  # type: ignore[attr-defined]
                await model.log.closed_count(2)
                closed = model.log.calls[1].closed
                assert closed is not None
                assert closed - left <= IN_TIME

    asyncio.run(main())
