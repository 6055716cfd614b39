"""The same application under every ASGI server, each in a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from support.books import DIRECTORY, Books
from support.processes import end, free_port

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

TESTS = Path(__file__).parents[1]
_PATIENCE = 100.0


def _uvicorn(target: str, port: int) -> list[str]:
    return ["uvicorn", target, "--port", str(port), "--log-level", "warning"]


def _hypercorn(target: str, port: int) -> list[str]:
    # No workers: it serves in the process that was started.
    bind = ("--bind", f"127.0.0.1:{port}", "--log-level", "warning")
    return ["hypercorn", target, *bind, "--workers", "0"]


def _granian(target: str, port: int) -> list[str]:
    quiet = ("--log-level", "warning")
    return ["granian", target, "--interface", "asgi", "--port", str(port), *quiet]


_COMMANDS = {"uvicorn": _uvicorn, "hypercorn": _hypercorn, "granian": _granian}
SERVERS = tuple(_COMMANDS)


@dataclass
class Serving:
    """A server in a process of its own.

    Attributes:
        port: Where it listens, on loopback.
        books: What its processes have booked.
        errors: What it has said on stderr and stdout.
    """

    port: int
    books: Books
    log: Path
    process: subprocess.Popen[bytes] = field(repr=False)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def said(self) -> str:
        """Everything the server wrote to its log so far."""
        return self.log.read_text()

    async def terminate(self) -> int:
        """Send SIGTERM, and wait for the end; returns the exit status."""
        self.process.terminate()
        return await asyncio.to_thread(self.process.wait, _PATIENCE)


@contextlib.asynccontextmanager
async def serving(  # noqa: PLR0913  keywords
    server: str,
    directory: Path,
    model: str,
    *,
    target: str = "support.leaf:app",
    options: tuple[str, ...] = (),
    environment: Mapping[str, str] | None = None,
    launcher: tuple[str, ...] = (sys.executable,),
) -> AsyncIterator[Serving]:
    """Serve ``target`` until the block is left; there when the block is entered.

    Args:
        server: One of ``SERVERS``.
        directory: Where its books and its log are written.
        model: The OpenAI base URL of the model.
        target: ``module:attribute``.
        options: For the server's command line.
        environment: More variables.
        launcher: What runs the server's module: the interpreter, and what starts that.
    """
    books = directory / "books"
    books.mkdir(parents=True)
    log = directory / "log"
    port = free_port()
    path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    with log.open("wb") as out:
        process = subprocess.Popen(  # noqa: ASYNC220, S603  an interpreter of ours
            [*launcher, "-m", *_COMMANDS[server](target, port), *options],
            env={
                **os.environ,
                # Stopping people who wait is what the tests do: no brake.
                "HANGUP_BRAKE_SHARE": "100",
                "PYTHONPATH": path,
                "MODEL": model,
                DIRECTORY: str(books),
                **(environment or {}),
            },
            stdout=out,
            stderr=out,
        )
    served = Serving(port, Books(books), log, process)
    try:
        await _listening(served)
        yield served
    finally:
        await asyncio.to_thread(end, process, _PATIENCE)


async def _listening(served: Serving) -> None:
    until = time.monotonic() + _PATIENCE
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", served.port)
        except ConnectionError:
            assert served.process.poll() is None, served.said
            assert time.monotonic() < until, served.said
            await asyncio.sleep(0.05)
        else:
            writer.close()
            return
