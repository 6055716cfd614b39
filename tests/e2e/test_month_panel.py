"""The month panel against the model's log, with workers that come and go.

Runs of three seconds at a scrape every fifteen, in real time: most runs are over before
the next scrape, and a worker that is replaced has counted what nobody scraped.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from dashboards import files, queries, rules
from genai_prices import Usage, calc_price
from support.archive import DAY, HOUR, MONTH, Archive, scraped
from support.panels import of_the_month
from support.prometheus import Prometheus
from support.rig import MODEL, Caller
from support.workers import Workers, workers

from hangup.demo.brain import Script
from hangup.demo.model_server import ModelServer
from hangup.demo.truth import split_tokens

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from support.archive import Series

    from hangup.demo.journal import CallRecord

pytestmark = [pytest.mark.timeout(240), pytest.mark.wide]

SCRAPE = 15
SECONDS = 56.0
"""For so long people ask: four scrapes, and three restarts."""
USERS = 8
SCRIPT = Script(
    tokens=300, input_tokens=200, rate=100, first_token=0.01, jitter=0, chunk_most=2
)
"""An answer of three seconds."""
RESTARTS = 3
TOLERANCE = 0.02

TENTH = MONTH + 9 * DAY
LOOK = MONTH + 19 * DAY + 1234
"""When it happens in the month, and when the month is looked at."""
MINUTES = (2, 17, 32)
"""Minutes after a full hour at which it happens once, in a service that just began.

Not across the hour: of an increase within one scrape either hour sees nothing. Of one
minute that is much, of hours on end it is not."""
ON_END, OFTEN = "on end", 120
"""The other way: for two hours, the same minute again and again."""


@dataclass
class Visit:
    """One who asked: the model call that it made, and when they left."""

    call: CallRecord
    left: float | None = None


class Crowd:
    """People who ask one after the other; of five, two leave before the answer."""

    def __init__(self, served: Workers, model: ModelServer) -> None:
        self.visits: list[Visit] = []
        self.answers: list[int] = []
        self._served = served
        self._model = model
        self._asking = asyncio.Lock()
        self._draw = random.Random(6)  # noqa: S311  no secret

    async def asks(self, seconds: float) -> None:
        """Ask, for so long."""
        until = time.monotonic() + seconds
        async with asyncio.TaskGroup() as group:
            for _ in range(USERS):
                group.create_task(self._user(until))

    async def _user(self, until: float) -> None:
        await asyncio.sleep(self._draw.uniform(0, 3))  # not all at once
        while time.monotonic() < until:
            log = self._model.log
            async with self._asking:  # so that it is known whose call it is
                caller = await Caller.asks(self._served, "/answer")
                await log.opened_count(len(self.visits) + 1, 30)
                visit = Visit(log.calls[-1])
                self.visits.append(visit)
            if self._draw.random() < 0.4:
                await asyncio.sleep(self._draw.uniform(0.1, 1.5))
                visit.left = caller.leaves()
                await log.wait_for(lambda: visit.call.closed is not None, 30)  # noqa: B023
            else:
                self.answers.append((await caller.answer())[0])


def dollars(calls: Iterable[tuple[int, int]]) -> float:
    """What so many input and output tokens cost, as genai-prices says."""
    tokens = list(calls)
    usage = Usage(
        input_tokens=sum(one[0] for one in tokens),
        output_tokens=sum(one[1] for one in tokens),
    )
    return float(calc_price(usage, MODEL).total_price)


def spent(visits: list[Visit]) -> tuple[float, float]:
    """What was spent after somebody had left, and all in all."""
    after = [
        (0, split_tokens(visit.call, visit.left)[1])
        for visit in visits
        if visit.left is not None
    ]
    every = [(visit.call.input_tokens, visit.call.output_tokens) for visit in visits]
    return dollars(after), dollars(every)


@pytest.fixture
def directory() -> Iterator[Path]:
    """A short one: the path of a Unix socket has no room for what pytest makes."""
    with tempfile.TemporaryDirectory(dir="/tmp") as path:
        yield Path(path)


async def served_for_a_minute(
    directory: Path, folder: Path
) -> tuple[Series, list[Visit]]:
    """Ask four workers, and have them replaced three times meanwhile.

    Returns:
        What Prometheus scraped of them, and who asked.
    """
    environment = {"HANGUP_MODE": "observe", "OTEL_METRICS_EXPORTER": "hangup_workers"}
    async with ModelServer(default=SCRIPT, on_close="finish") as model:
        environment["OPENAI_BASE_URL"] = model.base_url
        async with workers("gunicorn", directory, environment) as served:
            await served.processes(4)
            prometheus = Prometheus(
                folder, served.metrics_port, files.prometheus_rules(), every=SCRAPE
            )
            await asyncio.to_thread(prometheus.__enter__)
            try:
                crowd = Crowd(served, model)
                async with asyncio.TaskGroup() as group:
                    asking = group.create_task(crowd.asks(SECONDS))
                    for _ in range(RESTARTS):
                        await asyncio.sleep(SECONDS / (RESTARTS + 1) - 2)
                        await served.restarted()
                        assert not asking.done()
                await asyncio.to_thread(caught_up, prometheus, model)
                names = [one.name for one in rules.RECORDED]
                found = await asyncio.to_thread(scraped, prometheus, names)
            finally:
                await asyncio.to_thread(prometheus.__exit__, None, None, None)
            assert set(crowd.answers) == {200}
            assert "Traceback" not in served.said, served.said
    assert not any(call.cut for call in model.log.calls)
    return found, crowd.visits


def caught_up(prometheus: Prometheus, model: ModelServer) -> None:
    """Wait for the scrape with the last call of all."""
    true = sum(call.total_tokens for call in model.log.calls)
    tokens = "sum(hangup_metered_tokens_total)"
    prometheus.until(lambda: prometheus.number(tokens) == true)


def test_c12_g1_the_month_panel_is_right_through_restarts(
    directory: Path, tmp_path: Path
) -> None:
    """Dollars after abandonment, dollars metered, and the share: within 2 %.

    Observed, so that nothing is cut: what the model generated is what is charged.
    """
    found, visits = asyncio.run(served_for_a_minute(directory, tmp_path))
    assert any(visit.left is not None for visit in visits)
    wasted, metered = spent(visits)
    archive = Archive(tmp_path / "month", SCRAPE)
    times = {f"at {minute}": 1 for minute in MINUTES} | {ON_END: OFTEN}
    for minute in MINUTES:
        starts = TENTH + 60 * minute
        archive.put(found, f"at {minute}", starts, until=TENTH + 1.2 * HOUR)
    archive.put(found, ON_END, TENTH + 607, until=TENTH + 3.2 * HOUR, times=OFTEN)
    archive.build()
    wrong = {}
    with archive:
        for job, often in times.items():
            for title, expr, true in (
                ("wasted", of_the_month("Spent after abandonment"), often * wasted),
                ("metered", queries.MONTH_METERED, often * metered),
                ("share", of_the_month("Share of metered spend"), wasted / metered),
                ("coverage", of_the_month("Coverage"), 1.0),
            ):
                wrong[job, title] = archive.month(expr, LOOK, job) / true - 1
    told = "\n".join(f"{key}: {value:+.2%}" for key, value in wrong.items())
    print(told)  # noqa: T201  the figures are asked for
    assert max(map(abs, wrong.values())) < TOLERANCE, told
