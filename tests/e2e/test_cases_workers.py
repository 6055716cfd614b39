"""Case c12: four workers, and one of them restarted, count as one."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.core import in_loop
from support.otlp import Receiver
from support.rig import Caller
from support.workers import EXAMPLE, Workers, total, workers

from hangup.demo.brain import Script
from hangup.demo.model_server import ModelServer
from hangup.otel import names

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.timeout(240), pytest.mark.wide]

RUNS = 40
SCRIPT = Script(tokens=100, input_tokens=20, rate=20, first_token=0.05)
"""An answer of five seconds: all have left by then, also on a busy machine."""
QUICK = Script(tokens=100, input_tokens=20, rate=1_000, first_token=0.01)


@pytest.fixture
def directory() -> Iterator[Path]:
    """A short one: the path of a Unix socket has no room for what pytest makes."""
    with tempfile.TemporaryDirectory(dir="/tmp") as path:
        yield Path(path)


async def walk_away(served: Workers, model: ModelServer, count: int) -> None:
    """So many ask, and leave while the model generates; it goes on: this is observe."""
    before = model.log.opened
    callers = [await Caller.asks(served, "/answer") for _ in range(count)]
    await model.log.opened_count(before + count, 60)
    for caller in callers:
        caller.leaves()


def truth(model: ModelServer) -> tuple[int, int]:
    """How many calls were read to the end, and how many were cut.

    granian does not wait for requests whose client has gone: a worker that ends cuts
    them, whatever the mode. What they used is unknown then, and counted as that.
    """
    cut = sum(call.cut for call in model.log.calls)
    return len(model.log.calls) - cut, cut


@pytest.mark.parametrize("server", ["gunicorn", "uvicorn", "granian"])
def test_c12_multi_worker_sawtooth(server: str, directory: Path) -> None:
    """Scraped all the while: no series ever goes back, and the end is the truth.

    Over OTLP nothing is exported but when a process ends: what a worker that was
    restarted had counted has not been lost.
    """

    @in_loop
    async def check() -> None:
        with Receiver() as receiver:
            environment = {
                "HANGUP_MODE": "observe",
                "OTEL_METRICS_EXPORTER": "hangup_workers,otlp",
                "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": receiver.http,
                "OTEL_METRIC_EXPORT_INTERVAL": "3600000",
            }
            async with ModelServer(default=SCRIPT, on_close="finish") as model:
                environment["OPENAI_BASE_URL"] = model.base_url
                async with workers(server, directory, environment) as served:
                    await _served(served, model)
                    assert await served.terminate() in (0, -signal.SIGTERM)
                    assert "Traceback" not in served.said, served.said
        whole, cut = truth(model)
        assert whole + cut == RUNS
        assert not cut or server == "granian"
        at_most = whole * 120 + cut * 20  # of a cut call the input is estimated
        assert whole * 120 <= receiver.total(names.METERED_TOKENS) <= at_most
        tokens = receiver.total(names.TOKENS)
        assert tokens == receiver.total(names.METERED_TOKENS)
        assert receiver.total(names.UNKNOWN_CALLS) == cut
        assert receiver.total(names.RUNS, outcome="abandoned") == RUNS
        # Four, and the one that took a place; which of them counts is the kernel's
        # affair. What every process exports is this counter, at zero.
        spending = {
            one.instance for one in receiver.points(names.METERED_TOKENS) if one.value
        }
        instances = receiver.instances(names.BAGGAGE_LOST)
        assert len(spending) >= 2
        assert len(instances) >= 5
        assert "" not in instances

    async def _served(served: Workers, model: ModelServer) -> None:
        before = await served.processes(4)
        scraping = asyncio.create_task(served.scraping())
        await walk_away(served, model, RUNS // 2)
        victim = min(before)
        os.kill(victim, signal.SIGTERM)
        await served.processes(4, but=victim)
        await walk_away(served, model, RUNS // 2)
        await model.log.closed_count(RUNS, 60)
        whole, cut = truth(model)
        async with asyncio.timeout(30):
            while total(served.scrapes[-1], "hangup_calls_total") != RUNS:
                await served.scraped(1)
        for scrape in await served.scraped(6):
            spent = total(scrape, "hangup_metered_tokens_total")
            assert whole * 120 <= spent <= whole * 120 + cut * 20
            assert total(scrape, "hangup_tokens_total") == spent
            assert total(scrape, "hangup_unknown_calls_total") == cut
            assert total(scrape, "hangup_runs_total", outcome="abandoned") == RUNS
            assert total(scrape, "hangup_runs_total") == RUNS
            assert total(scrape, "hangup_info") == 1
        scraping.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await scraping
        for earlier, later in zip(served.scrapes, served.scrapes[1:], strict=False):
            for series, value in earlier.items():
                if series[0].endswith(("_total", "_bucket", "_count")):
                    assert later[series] >= value, series

    check()


def test_a_server_that_reloads_its_code_counts_on(directory: Path) -> None:
    """``uvicorn --reload``: what the process before had counted is still there."""
    copy = directory / "example"
    shutil.copytree(EXAMPLE, copy)

    @in_loop
    async def check() -> None:
        environment = {
            "HANGUP_MODE": "observe",
            "OTEL_METRICS_EXPORTER": "hangup_workers",
            "WEB_CONCURRENCY": "1",
        }
        async with ModelServer(default=QUICK) as model:
            environment["OPENAI_BASE_URL"] = model.base_url
            async with workers(
                "uvicorn", directory, environment, "--reload", example=copy
            ) as served:
                [before] = await served.processes(1)
                for expected in (1, 2):
                    caller = await Caller.asks(served, "/answer")
                    assert (await caller.answer())[0] == 200
                    scrape = await asyncio.to_thread(served.scrape)
                    assert total(scrape, "hangup_runs_total") == expected
                    assert total(scrape, "hangup_tokens_total") == expected * 120
                    if expected == 1:
                        (copy / "app.py").touch()
                        await served.processes(1, but=before)
                assert "Traceback" not in served.said, served.said

    check()
