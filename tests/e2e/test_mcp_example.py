"""The example of an MCP server and its agent, as a reader would run it."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from support.rig import IN_TIME, Caller
from support.serving import serving

from hangup.demo.brain import Script
from hangup.demo.model_server import ModelServer

pytestmark = [pytest.mark.timeout(110), pytest.mark.wide]

EXAMPLES = Path(__file__).parents[2] / "examples"
MODEL = "gpt-4o-mini"
BRIEF = Script(tokens=5, input_tokens=20, rate=100, first_token=0.01)
LONG = Script(tokens=400, input_tokens=20, rate=20)


def test_the_model_call_of_an_mcp_server_ends_with_the_user_of_its_client(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with ModelServer() as model:
            model.script(MODEL, BRIEF, LONG)
            paths = [str(EXAMPLES), *filter(None, [os.environ.get("PYTHONPATH")])]
            environment = {
                "PYTHONPATH": os.pathsep.join(paths),
                "OPENAI_BASE_URL": model.base_url,
                "OPENAI_API_KEY": "test",
            }
            async with serving(
                "uvicorn",
                tmp_path,
                model.base_url,
                target="mcp_agent:app",
                environment=environment,
            ) as agent:
                answer = await (await Caller.asks(agent, "/research/bees")).json()
                assert answer["found"]
                caller = await Caller.asks(agent, "/research/wasps")
                await model.log.opened_count(2)
                left = caller.leaves()
                await model.log.closed_count(2)
                closed = model.log.calls[1].closed
                assert closed is not None
                assert closed - left <= IN_TIME
                assert model.log.opened == 2

    asyncio.run(main())
