"""docket's tasks share the deadline, the stop and the bill of the run that added them.

A real Redis, a real worker in a process of its own, real clients.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from docket.execution import ExecutionCancelled
from redis import Redis as Client
from support.docket_agent import again, ask, calm, docket, first
from support.queue_workers import docket_worker, working
from support.rig import LONG, SHORT, traced
from support.stores import Redis, directory

import hangup
from hangup.bus import connect
from hangup.bus.operator import kill
from hangup.demo.brain import Script
from hangup.demo.model_server import ModelServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from docket import Docket
    from support.queue_workers import Worker
    from support.telemetry import Telemetry

pytestmark = [pytest.mark.timeout(300), pytest.mark.wide]

IN_TIME = 3.0
"""Seconds after T0, on a busy machine; the answers would take twenty."""
RETRY_DUE = 4.0
"""Seconds after which a task that has failed would have been tried again."""
NOTICED = 30
"""Tokens: what another process, on a busy machine, has not read yet."""
MODEST = Script(tokens=60, input_tokens=20, rate=30, first_token=0.05, jitter=0)
WAIT = timedelta(seconds=20)


class Bench:
    """What the cases have at hand.

    Attributes:
        docket: Where they add tasks.
        model: The model; its log is the truth.
        telemetry: What this process has booked.
    """

    def __init__(
        self,
        place: Path,
        model: ModelServer,
        telemetry: Telemetry,
        redis: Redis,
        docket: Docket,
    ) -> None:
        self.place, self.model, self.telemetry = place, model, telemetry
        self.docket = docket
        self.url = f"unix://{redis.socket}"
        self.redis: Any = Client(unix_socket_path=str(redis.socket))

    def worker(self, name: str = "worker", **environment: str) -> Worker:
        return docket_worker(
            self.place / name, self.url, self.model.base_url, environment
        )

    def of(self, model: str) -> list[Any]:
        return [call for call in self.model.log.calls if call.model == model]

    async def begun(self, model: str, tokens: int = 5) -> None:
        await self.model.log.wait_for(
            lambda: sum(call.output_tokens for call in self.of(model)) >= tokens, 30
        )

    async def late(self, model: str, moment: float) -> float:
        """By how many seconds the calls to this model outlived that moment."""
        calls = self.of(model)
        await self.model.log.wait_for(
            lambda: all(call.closed is not None for call in calls), 30
        )
        return float(max(call.closed for call in calls) - moment)


@contextlib.asynccontextmanager
async def benched() -> AsyncIterator[Bench]:
    with directory() as place, Redis(place) as redis, traced() as telemetry:
        url = f"unix://{redis.socket}"
        async with ModelServer() as model, docket(url) as ours:
            yield Bench(place, model, telemetry, redis, ours)


@contextlib.asynccontextmanager
async def served(*workers: Worker) -> AsyncIterator[None]:
    block = working(*workers)
    await asyncio.to_thread(block.__enter__)
    try:
        yield
    finally:
        await asyncio.to_thread(block.__exit__, None, None, None)


async def _booked(worker: Worker, model: str, **expected: int) -> None:
    def found() -> dict[str, int]:
        return {
            fate: int(tokens)
            for fate in ("delivered", "sunk", "wasted", "after")
            if (tokens := worker.books.total("hangup.tokens", fate=fate, model=model))
        }

    until = time.monotonic() + 15
    while found() != expected and time.monotonic() < until:  # noqa: ASYNC110
        await asyncio.sleep(0.05)  # another process, which signals nothing
    assert found() == expected


async def _stopped_at(
    bench: Bench,
    model: str,
    moments: list[float],
    cause: str = "killed",
    **options: Any,
) -> None:
    """Add a task, and stop its run once the model answers; note when."""
    async with hangup.run(30, name=model, **options) as run:
        execution = await bench.docket.add(ask)(model)
        waiting = asyncio.create_task(execution.get_result(timeout=WAIT))
        await bench.begun(model, 20)
        moments.append(time.monotonic())
        run.cancel(cause)
        with contextlib.suppress(ExecutionCancelled):
            await waiting


async def _wasted(bench: Bench, worker: Worker, model: str, moment: float) -> None:
    """The worker books as wasted what the model says it wrote after that moment."""
    [call] = bench.of(model)
    wrote = sum(tokens for at, tokens in call.chunks if at >= moment)
    until = time.monotonic() + 10
    while time.monotonic() < until:
        wasted = worker.books.total("hangup.tokens", fate="wasted", model=model)
        if abs(wasted - wrote) <= NOTICED:
            break
        await asyncio.sleep(0.05)
    assert abs(wasted - wrote) <= NOTICED


async def _killed(bench: Bench, worker: Worker) -> None:
    """f6: the stop reaches the task, the waiter and both books."""
    bench.model.script("killed", LONG)
    moments: list[float] = []
    with pytest.raises(hangup.RunCancelled):
        await _stopped_at(bench, "killed", moments)
    [moment] = moments
    assert await bench.late("killed", moment) < IN_TIME
    [call] = bench.of("killed")
    assert call.cut
    await _wasted(bench, worker, "killed", moment)
    # One run, counted by who opened it.
    assert bench.telemetry.total("hangup.runs", run="killed") == 1


async def _observed(bench: Bench, worker: Worker) -> None:
    """In observe nothing is cut, and the waste is exact."""
    bench.model.script("observed", MODEST)
    moments: list[float] = []
    await _stopped_at(bench, "observed", moments, "disconnect", mode="observe")
    [call] = bench.of("observed")
    await bench.late("observed", moments[0])
    until = time.monotonic() + 10
    total = worker.books.total
    while time.monotonic() < until:
        found = [
            total("hangup.tokens", fate=fate, model="observed")
            for fate in ("sunk", "wasted", "delivered")
        ]
        if sum(found) == 80:
            break
        await asyncio.sleep(0.05)
    assert sum(found) == call.total_tokens == 80
    assert found[2] == 0
    await _wasted(bench, worker, "observed", moments[0])
    assert bench.telemetry.total("hangup.runs", run="observed") == 1


async def _answered(bench: Bench, worker: Worker) -> None:
    """An answer is booked as what became of it in the process that asked."""
    for model in ("taken", "left"):
        bench.model.script(model, SHORT)
    async with hangup.run(30, name="user"):
        assert await (await bench.docket.add(ask)("taken")).get_result(timeout=WAIT)
    async with hangup.run(30, name="user", mode="observe") as run:
        await (await bench.docket.add(ask)("left")).get_result(timeout=WAIT)
        run.cancel("disconnect")
    await _booked(worker, "taken", delivered=28)
    await _booked(worker, "left", sunk=28)


async def _delayed(bench: Bench, worker: Worker) -> None:
    """A retry, or a task for later, never runs past the stop, however it comes."""

    async def killed() -> None:
        bench.model.script("again", SHORT)
        with contextlib.suppress(hangup.RunCancelled):
            async with hangup.run(30) as run:
                await bench.docket.add(again)("again")
                await bench.begun("again", 8)
                await bench.late("again", 0.0)  # it fails, and waits to be retried
                run.cancel("killed")
        await asyncio.sleep(RETRY_DUE)
        assert len(bench.of("again")) == 1

    async def past() -> None:
        bench.model.script("past", SHORT)
        began = time.monotonic()
        with pytest.raises(hangup.DeadlineExceeded):
            async with hangup.run(0.8):
                execution = await bench.docket.add(again)("past")
                await execution.get_result(timeout=WAIT)
        assert time.monotonic() - began < 0.8 + IN_TIME
        await asyncio.sleep(RETRY_DUE)
        assert len(bench.of("past")) <= 1

    async def by_the_board() -> None:
        """Under a key of one's own nothing is cancelled: what begins looks itself."""
        for model in ("own", "later"):
            bench.model.script(model, SHORT)
        soon = datetime.now(UTC) + timedelta(seconds=2)
        with contextlib.suppress(hangup.RunCancelled):
            async with hangup.run(30) as run:
                await bench.docket.add(ask, key="later", when=soon)("later")
                await bench.docket.add(again, key="own")("own")
                await bench.begun("own", 8)
                await bench.late("own", 0.0)
                run.cancel("killed")
        await asyncio.sleep(RETRY_DUE)
        assert len(bench.of("own")) == 1
        assert bench.of("later") == []

    async def in_time() -> None:
        """What was delayed is part of the run all the same, and is booked on it."""
        bench.model.script("delayed", SHORT)
        soon = datetime.now(UTC) + timedelta(seconds=1)
        async with hangup.run(30, name="user"):
            sent = await bench.docket.add(ask, when=soon)("delayed")
            assert await sent.get_result(timeout=WAIT)
        await _booked(worker, "delayed", delivered=28)

    async with asyncio.TaskGroup() as group:
        group.create_task(killed())
        group.create_task(past())
        group.create_task(by_the_board())
        group.create_task(in_time())


async def _tree(bench: Bench) -> None:
    """What a task makes of tasks inside the worker stops with it."""
    bench.model.script("tree", SHORT, LONG)
    with pytest.raises(hangup.RunCancelled):
        async with hangup.run(30) as run:
            execution = await bench.docket.add(first)("tree")
            waiting = asyncio.create_task(execution.get_result(timeout=WAIT))
            await bench.begun("tree", 8 + 10)
            await bench.model.log.wait_for(lambda: len(bench.of("tree")) == 3)
            moment = time.monotonic()
            run.cancel("superseded")
            await waiting
    assert await bench.late("tree", moment) < IN_TIME


async def _named(bench: Bench) -> None:
    """A key of one's own may be another's task by now: that one goes on."""
    bench.model.script("named", LONG)
    bench.model.script("others", MODEST)
    moment = 0.0
    with pytest.raises(hangup.RunCancelled):
        async with hangup.run(30) as run:
            await bench.docket.add(ask, key="mine")("named")
            with hangup.detached():
                await bench.docket.add(ask, key="shared")("others")
            await bench.docket.add(ask, key="shared")("others")  # it is there already
            await bench.begun("named", 20)
            moment = time.monotonic()
            run.cancel("killed")
            await asyncio.sleep(5)
    assert await bench.late("named", moment) < IN_TIME
    await bench.begun("others", 60)


async def _outlives(bench: Bench) -> None:
    """What is meant to outlive the run does: detached, in a cleanup, not awaited."""
    names = ("detached", "cleanup", "delivered")
    for name in names:
        bench.model.script(f"out-{name}", MODEST)
    with pytest.raises(hangup.RunCancelled):
        async with hangup.run(30) as run:
            with hangup.detached():
                await bench.docket.add(ask)("out-detached")
            async with hangup.cleanup():
                await bench.docket.add(ask)("out-cleanup")
            await bench.begun("out-detached")
            run.cancel("killed")
            await asyncio.sleep(5)
    async with hangup.run(2.0, name="quick") as quick:
        await bench.docket.add(ask)("out-delivered")
    assert quick.delivered_at is not None
    for name in names:
        await bench.begun(f"out-{name}", 60)


def test_a_run_and_what_it_added_to_a_docket() -> None:
    async def main() -> None:
        async with benched() as bench:
            worker = bench.worker()
            async with served(worker):
                await _observed(bench, worker)  # alone: what is late counts as waste
                async with asyncio.TaskGroup() as group:
                    group.create_task(_killed(bench, worker))
                    group.create_task(_answered(bench, worker))
                    group.create_task(_delayed(bench, worker))
                    group.create_task(_tree(bench))
                    group.create_task(_named(bench))
                    group.create_task(_outlives(bench))
            assert worker.books.runs() == {}
            assert "inside hangup" not in worker.said
            assert "never retrieved" not in worker.said
            assert "was destroyed" not in worker.said

    asyncio.run(main())


def test_a_message_carries_the_run_or_not_at_all() -> None:
    """Nobody's task, a detached one and one for tomorrow carry nothing."""

    async def main() -> None:
        async with benched() as bench:
            add = bench.docket.add
            tomorrow = datetime.now(UTC) + timedelta(days=1)
            await add(calm, key="0")()
            async with hangup.run(30):
                await add(calm, key="1")()
                with hangup.detached():
                    await add(calm, key="2")()
                await add(calm, key="3", when=tomorrow)()
            found = bench.redis.xrange(bench.docket.stream_key)
            carried = {
                bytes(message[b"key"]).decode(): sorted(
                    name.decode() for name in message if b"hangup" in name
                )
                for _, message in found
            }
            assert carried == {"0": [], "1": ["hangup", "hangup-board"], "2": []}
            parked = bench.redis.hgetall(bench.docket.parked_task_key("3"))
            assert parked
            assert not [name for name in parked if b"hangup" in name]

    asyncio.run(main())


def test_f4_a_kill_that_nobody_took_holds_when_the_task_begins() -> None:
    """By an operator, with all workers down; the process that sent it has no bus."""

    async def main() -> None:
        async with benched() as bench:
            bench.model.script("unowned", SHORT)
            transport = connect(bench.url)
            async with hangup.run(60) as run:
                sent = await bench.docket.add(ask)("unowned")
                result = await asyncio.to_thread(kill, transport, run.id, patience=0.1)
                assert (result.holders, result.posted) == ([], True)
                async with served(bench.worker(HANGUP_BUS_URL=bench.url)):
                    with contextlib.suppress(ExecutionCancelled):
                        await sent.get_result(timeout=WAIT)
                assert sent.state.value == "cancelled"
            transport.close()
            assert bench.of("unowned") == []

    asyncio.run(main())


def test_f4_e1_workers_that_are_down_or_have_another_clock() -> None:
    async def main() -> None:
        async with benched() as bench:
            for model in ("killed", "late"):
                bench.model.script(model, SHORT)
            bench.model.script("long", LONG)
            with contextlib.suppress(hangup.RunCancelled):
                async with hangup.run(60) as run:
                    dead = await bench.docket.add(ask)("killed")
                    run.cancel("killed")
            with contextlib.suppress(hangup.DeadlineExceeded):
                async with hangup.run(0.5):
                    late = await bench.docket.add(ask)("late")
                    await asyncio.sleep(5)
            for name, skew in (("ahead", "120"), ("behind", "-120")):
                async with served(bench.worker(name, SKEW=skew)):
                    began = time.monotonic()
                    with pytest.raises(hangup.DeadlineExceeded):
                        async with hangup.run(4.0):
                            execution = await bench.docket.add(ask)("long")
                            await execution.get_result(timeout=WAIT)
                    assert abs(await bench.late("long", began) - 4.0) < 1.5
                    assert bench.of("long")[-1].output_tokens > 10
            assert bench.of("killed") == bench.of("late") == []
            for one in (dead, late):
                await one.sync()
                assert one.state.value == "cancelled"

    asyncio.run(main())
