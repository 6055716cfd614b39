"""The example of an agent behind gRPC runs, and does what it says."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.core import in_loop
from support.rig import LONG, SHORT

from hangup.demo.model_server import ModelServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.timeout(110)

_EXAMPLE = Path(__file__).parents[2] / "examples" / "grpc_agent.py"
_PATIENCE = 60.0


@contextlib.asynccontextmanager
async def running(model: ModelServer, *arguments: str) -> AsyncIterator[Any]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(_EXAMPLE),
        *arguments,
        env={
            **os.environ,
            "OPENAI_BASE_URL": model.base_url,
            "OPENAI_API_KEY": "test",
        },
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


@pytest.mark.wide
@in_loop
async def test_the_grpc_example_answers_and_stops_with_its_caller() -> None:
    async with (
        ModelServer(default=SHORT) as model,
        running(model, "serve", "127.0.0.1:0") as server,
    ):
        async with asyncio.timeout(_PATIENCE):
            port = (await server.stdout.readline()).split()[-1].decode()
        address = f"127.0.0.1:{port}"
        async with running(model, "ask", address, "What is SIGHUP?") as asking:
            said, complaints = await asyncio.wait_for(asking.communicate(), _PATIENCE)
        assert asking.returncode == 0, complaints
        assert said.strip()
        model.script("gpt-4o-mini", LONG)
        async with running(model, "ask", address, "What is SIGHUP?") as asking:
            await model.log.wait_for(
                lambda: sum(one.output_tokens for one in model.log.calls) > 15,
                _PATIENCE,
            )
            left = time.monotonic()
            asking.send_signal(signal.SIGINT)
            await model.log.closed_count(2)
        closed = model.log.calls[1].closed
        assert closed is not None
        assert closed - left < 1.0
