"""Case b9: MCP clients on standard input and output; a run killed from elsewhere."""

from __future__ import annotations

import asyncio
import random
import secrets
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from mcp import ClientSession, StdioServerParameters, stdio_client
from support.core import in_loop

import hangup
from hangup.testing import telemetry

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hangup.core.run import Run

pytestmark = pytest.mark.timeout(90)

TOOLS = Path(__file__).parents[1] / "support" / "mcp_tools.py"
AT_ONCE = 10
START = 0.2
"""Seconds in which some of the runs are killed: while their servers start."""


def processes(name: str) -> list[int]:
    """The processes that have ``name`` among their arguments, and have not ended."""

    def arguments() -> Iterator[tuple[int, bytes]]:
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    yield int(entry.name), (entry / "cmdline").read_bytes()
                except OSError:  # it has ended meanwhile
                    continue

    return [pid for pid, line in arguments() if name.encode() in line.split(b"\0")]


class Repetition:
    """One task that opens two clients in a run, and a watcher that kills the run."""

    def __init__(self, server: StdioServerParameters, after: float | None) -> None:
        self._server = server
        self._after = after
        self._opened = asyncio.Event()
        self._calling = asyncio.Event()
        self.run: Run | None = None

    async def work(self, tool: str) -> list[str]:
        """Open two clients and call a tool of both."""
        async with hangup.run(name="two servers") as run:
            self.run = run
            self._opened.set()
            async with (
                stdio_client(self._server) as one,
                ClientSession(*one) as first,
                stdio_client(self._server) as two,
                ClientSession(*two) as second,
            ):
                await first.initialize()
                await second.initialize()
                self._calling.set()
                found = await asyncio.gather(
                    *(one.call_tool(tool, {"a": 1, "b": 2}) for one in (first, second))
                )
                return [getattr(answer.content[0], "text", "") for answer in found]
        return []

    async def watch(self) -> None:
        """Kill the run, once it calls or after so many seconds."""
        if self._after is None:
            await self._calling.wait()
        else:
            await self._opened.wait()
            await asyncio.sleep(self._after)
        assert self.run is not None
        self.run.cancel("killed", "by the watcher")

    async def killed(self) -> str:
        """Return what the task that opened the clients ended with."""
        opener = asyncio.create_task(self.work("hang"))
        await asyncio.create_task(self.watch())
        await asyncio.wait([opener])
        assert self.run is not None
        assert self.run.abandonment is not None
        assert self.run.abandonment.cause == "killed"
        return "cancelled" if opener.cancelled() else repr(opener.exception())


@pytest.mark.parametrize(
    ("kind", "repetitions"),
    [
        pytest.param("by hand", 50, id="tiny"),
        # Every one of its processes takes seconds to start.
        pytest.param("sdk", 2, id="sdk", marks=pytest.mark.wide),
    ],
)
def test_b9_cancel_from_the_wrong_task(kind: str, repetitions: int) -> None:
    """What a task has opened is closed in that task, and no server process is left.

    Half of the runs are killed while both tools hang, half while the servers start.
    """
    name = f"b9-{secrets.token_hex(8)}"
    interpreter = [] if kind == "sdk" else ["-S", "-E"]  # it needs the library alone
    server = StdioServerParameters(
        command=sys.executable, args=[*interpreter, str(TOOLS), kind, name]
    )
    moments = random.Random(9)  # noqa: S311  not for secrets
    at_once = asyncio.Semaphore(AT_ONCE)

    async def repetition(number: int) -> tuple[str, list[str]]:
        async with at_once:
            after = None if number % 2 else moments.uniform(0, START)
            ended = await Repetition(server, after).killed()
            return ended, await Repetition(server, None).work("add")

    @in_loop
    async def check() -> None:
        with telemetry():
            found = await asyncio.gather(*map(repetition, range(repetitions)))
        for ended, answer in found:
            # A session whose server went while it began says that in its own words.
            assert "RunCancelled" in ended or "Connection closed" in ended
            assert "cancel scope" not in ended
            assert "RuntimeError" not in ended
            assert answer == ["3", "3"]
        async with asyncio.timeout(5):
            while processes(name):  # noqa: ASYNC110  processes tell nobody
                await asyncio.sleep(0.05)

    check()
