"""The example with many workers, under the commands its README gives."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prometheus_client.parser import text_string_to_metric_families
from support.processes import end, free_port
from support.rig import Caller

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

EXAMPLE = Path(__file__).parents[2] / "examples" / "workers"
_PATIENCE = 60.0

Series = tuple[str, tuple[tuple[str, str], ...]]


def command(name: str, port: int) -> list[str]:
    """Return the command that the README of the example gives, on another port."""
    text = (EXAMPLE / "README.md").read_text()
    found = re.search(rf"<!-- {name} -->\n```\n(.+)\n```", text)
    assert found is not None, name
    return [sys.executable, "-m", *shlex.split(found[1].replace("8000", str(port)))]


class Workers:
    """The example in processes of its own.

    Attributes:
        port: Where it listens, on loopback.
        scrapes: What a scrape at each time has found.
    """

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.port = 0
        self.metrics_port = 0
        self.scrapes: list[dict[Series, float]] = []
        self._process = process
        self._log = log

    @property
    def said(self) -> str:
        """What its processes have logged."""
        return self._log.read_text()

    async def worker(self) -> int:
        """Return the process that answers one request."""
        caller = await Caller.asks(self, "/worker")
        found: int = (await caller.json())["worker"]
        return found

    async def processes(self, count: int, but: int = 0) -> set[int]:
        """Ask until so many have answered, beside one that may have ended."""
        found: set[int] = set()
        async with asyncio.timeout(_PATIENCE):
            while len(found - {but}) < count:
                assert self._process.poll() is None, self.said
                try:
                    found |= set(
                        await asyncio.gather(*(self.worker() for _ in range(8)))
                    )
                except (OSError, IndexError):  # not yet, or one that is ending
                    await asyncio.sleep(0.2)
        return found - {but}

    async def restarted(self) -> None:
        """Have gunicorn replace every worker at once, and wait until it has."""
        before = await self.processes(4)
        self._process.send_signal(signal.SIGHUP)
        now = before
        async with asyncio.timeout(_PATIENCE):
            while now & before:
                now = await self.processes(4)

    async def scraping(self, every: float = 0.3) -> None:
        """Scrape, for ever."""
        while True:
            self.scrapes.append(await asyncio.to_thread(self.scrape))
            await asyncio.sleep(every)

    async def scraped(self, count: int) -> list[dict[Series, float]]:
        """Wait for so many more scrapes, and return them."""
        before = len(self.scrapes)
        async with asyncio.timeout(_PATIENCE):
            while len(self.scrapes) < before + count:  # noqa: ASYNC110  no such event
                await asyncio.sleep(0.05)
        return self.scrapes[before:]

    def scrape(self) -> dict[Series, float]:
        """Read every series of hangup."""
        url = f"http://localhost:{self.metrics_port}/metrics"
        for attempt in range(5):
            try:
                with urllib.request.urlopen(url, timeout=20) as answer:
                    text = answer.read().decode()
                break
            except OSError:  # whoever was to answer is ending
                if attempt == 4:
                    raise
        return {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name.startswith("hangup")
        }

    async def terminate(self) -> int:
        """Send SIGTERM, and wait for the end; returns the exit status."""
        self._process.terminate()
        return await asyncio.to_thread(self._process.wait, _PATIENCE)


def total(scrape: dict[Series, float], name: str, **labels: str) -> float:
    """Add up the series of a metric; labels by the last word of their names."""
    return sum(
        value
        for (found, pairs), value in scrape.items()
        if found == name
        and all(
            any(key.endswith(label) and of == wanted for key, of in pairs)
            for label, wanted in labels.items()
        )
    )


@contextlib.asynccontextmanager
async def workers(
    name: str,
    directory: Path,
    environment: dict[str, str],
    *options: str,
    example: Path = EXAMPLE,
) -> AsyncIterator[Workers]:
    """Serve the example, or a copy of it, by the command of this name, and options."""
    log = directory / "log"
    port, metrics_port = free_port(), free_port()
    variables: dict[str, Any] = {
        "HANGUP_WORKERS_DIR": str(directory / "m"),
        "OTEL_EXPORTER_PROMETHEUS_PORT": str(metrics_port),
        "OPENAI_API_KEY": "test",
    }
    with log.open("wb") as out:
        process = subprocess.Popen(  # noqa: ASYNC220, S603  our own interpreter
            [*command(name, port), *options],
            cwd=example,
            env={**os.environ, **variables, **environment},
            stdout=out,
            stderr=out,
        )
    found = Workers(process, log)
    found.port, found.metrics_port = port, metrics_port
    try:
        yield found
    finally:
        await asyncio.to_thread(end, process, _PATIENCE)
