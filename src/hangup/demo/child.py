"""A server in a process of its own that ends when whoever started it ends.

The protocol between a parent and its child, one JSON line each way::

    child  -> parent (stdout)   {"port": 40123}           bound, not yet serving
    parent -> child  (stdin)    {"model": URL, ...}       the peers; serve now
    parent -> child  (stdin)    end of file               stop

A parent that dies, in whatever way, closes the pipe: no process is left behind. The
child's side is :func:`hangup.demo.service.serve_process`.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Mapping


class Child:
    """The parent's side: one started process.

    Attributes:
        port: Where it listens.
    """

    def __init__(self, process: asyncio.subprocess.Process, port: int) -> None:
        self._process = process
        self.port = port

    @classmethod
    async def start(cls, module: str, *arguments: str) -> Self:
        """Start ``python -m module`` and wait until it has bound its port.

        Raises:
            RuntimeError: It ended first.
        """
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            module,
            *arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            # Not in the terminal's group: Ctrl-C is for the parent, which ends us.
            start_new_session=True,
        )
        line = await _pipe(process.stdout).readline()
        if not line:
            code = await process.wait()
            raise RuntimeError(f"{module} ended with exit code {code} before it served")
        return cls(process, json.loads(line)["port"])

    @property
    def url(self) -> str:
        """Where it is reached, once told its peers."""
        return f"http://127.0.0.1:{self.port}"

    def serve(self, peers: Mapping[str, str]) -> None:
        """Tell it its peers: it serves from now on."""
        writer = self._process.stdin
        assert writer is not None  # noqa: S101  asked for in start
        writer.write((json.dumps(dict(peers)) + "\n").encode())

    async def stop(self, within: float = 5.0) -> None:
        """End it: politely, then by force. Idempotent."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            async with asyncio.timeout(within):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()


def _pipe(reader: asyncio.StreamReader | None) -> asyncio.StreamReader:
    assert reader is not None  # noqa: S101  every child is started with pipes
    return reader
