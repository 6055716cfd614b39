"""Workers of Celery that are down, die, or have another idea of the time."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

import pytest
from support import celery_agent as agent
from support.modelthread import ModelThread
from support.queue_workers import celery_worker, working
from support.rig import LONG, SHORT, traced
from support.stores import Redis, directory

import hangup
from hangup.bus import connect
from hangup.bus.operator import kill

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.queue_workers import Worker

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.wide,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning"),
]

SKEWS = {"ahead": 120.0, "behind": -120.0}


class Bench:
    def __init__(self, place: Path, model: ModelThread, url: str) -> None:
        self.place, self.model, self.url = place, model, url

    def worker(self, queue: str, **environment: str) -> Worker:
        return celery_worker(
            self.place / queue,
            self.url,
            self.model.base_url,
            queues=queue,
            environment=environment,
        )


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    with directory() as place, Redis(place) as redis, ModelThread() as model, traced():
        url = f"redis+socket://{redis.socket}"
        agent.connect(url)
        yield Bench(place, model, url)
        agent.app.close()


def _until(sent: Any, state: str, within: float = 20.0) -> None:
    until = time.monotonic() + within
    while sent.state != state and time.monotonic() < until:
        time.sleep(0.05)
    assert sent.state == state


def test_f4_a_revoke_reaches_workers_that_were_down_or_restart(bench: Bench) -> None:
    """No worker heard the revoke: what counts is what they find when they begin."""
    killed = bench.model.script("f4-killed", SHORT)
    out_of_time = bench.model.script("f4-deadline", SHORT)
    again = bench.model.script("f4-again", LONG)
    last = bench.model.script("f4-last", SHORT)
    worker = bench.worker("f4")
    with contextlib.suppress(hangup.RunCancelled), hangup.run(60, name="f4") as run:
        sent = [agent.ask.apply_async((killed,), queue="f4")]
        run.cancel("killed")
    with pytest.raises(hangup.DeadlineExceeded), hangup.run(0.5, name="f4"):
        sent.append(agent.ask.apply_async((out_of_time,), queue="f4"))
        sent[-1].get()
    with working(worker):
        with contextlib.suppress(hangup.RunCancelled), hangup.run(60) as run:
            redelivered = agent.ask_late.apply_async((again,), queue="f4")
            bench.model.begun(again)
            worker.kill()
            run.cancel("killed")
        worker.start()
        with hangup.run(60):
            # It takes it once the other has been given back, or before: both is fine.
            time.sleep(4.0)  # the broker gives back what was not acknowledged in 3 s
            assert agent.ask.apply_async((last,), queue="f4").get()
        for one in (*sent, redelivered):
            _until(one, "REVOKED")
    assert bench.model.of(killed) == bench.model.of(out_of_time) == []
    assert len(bench.model.of(again)) == 1


def test_f4_a_kill_that_nobody_took_holds_when_the_task_begins(bench: Bench) -> None:
    """By an operator, with all workers down; the process that sent it has no bus."""
    model = bench.model.script("f4-unowned", SHORT)
    bus = bench.url.replace("redis+socket:", "unix:")
    worker = bench.worker("f4-bus", HANGUP_BUS_URL=bus)
    transport = connect(bus)
    with hangup.run(60, name="f4") as run:
        sent = agent.ask.apply_async((model,), queue="f4-bus")
        result = kill(transport, run.id, patience=0.1)
        assert (result.holders, result.posted) == ([], True)
        with working(worker):
            _until(sent, "REVOKED")
    transport.close()
    assert bench.model.of(model) == []


def test_e1_a_deadline_holds_whatever_the_workers_clock_says(bench: Bench) -> None:
    """Neither an instant expiry nor an endless task; the time in the queue counts."""
    workers = {name: bench.worker(name, SKEW=str(skew)) for name, skew in SKEWS.items()}
    with working(*workers.values()):
        for name, skew in SKEWS.items():
            there = agent.wall.apply_async(queue=name).get(timeout=20)
            assert abs(there - time.time() - skew) < 10
        for name in SKEWS:
            model = bench.model.script(f"skew-{name}", LONG)
            began = time.monotonic()
            with pytest.raises(hangup.DeadlineExceeded), hangup.run(4.0):
                agent.ask.apply_async((model,), queue=name).get()
            bench.model.closed(model)
            assert abs(bench.model.late(model, began) - 4.0) < 1.5
            [call] = bench.model.of(model)
            assert call.output_tokens > 10
