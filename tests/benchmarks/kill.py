"""How long a kill takes to reach the leaf, beside a bare message to a bare subscriber.

    python tests/benchmarks/kill.py [--json] [--rounds N] [--kills N] [--runs N]

Method. A Redis of its own, on a socket. One process has 1,000 live runs on the bus;
another is a bare subscriber of redis-py. The third, this one, kills a run and publishes
a bare message of the same length by turns, with a pause between. A kill lasts from
before it is sent until the leaf's ``await`` raises ``CancelledError``; a message from
before it is published until the subscriber has it. Monotonic time is the same in all
processes of a machine. That is a round, and several are made with processes of their
own. Reported are p50 and p99 of both over all rounds, their ratios, and each round's
p99 ratio: of 600 kills it is the sixth worst, and any hiccup of the machine decides it.

Goal: the p99 ratio over all rounds at most 2.0. The exit status is 0 whether or not it
is met.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import redis

import hangup
from hangup.bus import connect
from hangup.bus.messages import write_marker
from hangup.core import registry, remote
from hangup.core.cause import Cause

GOAL = 2.0
PAUSE = 0.004
CHANNEL = "bare"
MICRO = 1e6


def _say(**what: object) -> None:
    print(json.dumps(what), flush=True)


async def _leaf() -> None:
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        ended = time.monotonic()
        _say(at=ended)
        raise


async def _one() -> None:
    with contextlib.suppress(hangup.RunAbandoned):
        async with hangup.run(3600, name="agent", tenant="acme"):
            await _leaf()


async def _own(count: int) -> None:
    """Keep ``count`` runs alive, and tell when one of them is stopped."""
    tasks: set[asyncio.Task[None]] = set()

    def start(_ended: object = None) -> None:
        task = asyncio.create_task(_one())
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        task.add_done_callback(start)

    for _ in range(count):
        start()
    while not getattr(remote.reach(), "up", False):  # noqa: ASYNC110  no such event
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.5)  # everything was read by now
    _say(runs=[run.id for run in registry.live_runs()])
    await asyncio.Event().wait()


def _listen(url: str) -> None:
    """Tell when each message came."""
    pubsub: Any = redis.Redis.from_url(url, decode_responses=True, protocol=2)
    pubsub = pubsub.pubsub()
    pubsub.subscribe(CHANNEL)
    for message in pubsub.listen():
        came = time.monotonic()
        if message["type"] == "subscribe":
            _say(ready=True)
        else:
            _say(at=came)


class Other:
    """One of the other two processes."""

    def __init__(self, *arguments: str) -> None:
        self._process = subprocess.Popen(  # noqa: S603  this file, this Python
            [sys.executable, __file__, *arguments],
            stdout=subprocess.PIPE,
            text=True,
        )

    def hears(self) -> Any:
        """Return what it says next."""
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    def end(self) -> None:
        """End it."""
        self._process.kill()
        self._process.communicate()


def measure(url: str, kills: int, runs: int) -> dict[str, list[float]]:
    """Return the seconds that each kill, and each bare message, took."""
    owner, bare = Other("--own", url, "--runs", str(runs)), Other("--listen", url)
    transport = connect(url)
    publisher: Any = redis.Redis.from_url(url, decode_responses=True, protocol=2)
    took: dict[str, list[float]] = {"kill": [], "bare": []}
    try:
        bare.hears()
        ids = owner.hears()["runs"][:kills]
        for number, run_id in enumerate(ids):
            time.sleep(PAUSE)
            marker = write_marker(run_id, Cause.KILLED, "by an operator")
            began = time.monotonic()
            transport.stop(run_id, marker, f"{number:016x}")
            took["kill"].append(owner.hears()["at"] - began)
            time.sleep(PAUSE)
            began = time.monotonic()
            publisher.publish(CHANNEL, f"stop {number:016x} {marker}")
            took["bare"].append(bare.hears()["at"] - began)
    finally:
        owner.end()
        bare.end()
        transport.close()
        publisher.close()
    return took


def _percentiles(times: list[float]) -> dict[str, float]:
    """Return p50 and p99, in microseconds."""
    cuts = statistics.quantiles(times, n=100)
    return {"p50": round(cuts[49] * MICRO, 1), "p99": round(cuts[98] * MICRO, 1)}


def report(rounds: list[dict[str, list[float]]]) -> dict[str, Any]:
    """Return percentiles in microseconds, and ratios."""
    both = ("kill", "bare")
    us = {side: _percentiles([one for r in rounds for one in r[side]]) for side in both}
    each = [{side: _percentiles(one[side])["p99"] for side in both} for one in rounds]
    ratio = {
        name: round(us["kill"][name] / us["bare"][name], 3) for name in ("p50", "p99")
    }
    return {
        "us": us,
        "ratio": ratio,
        "rounds": sorted(round(one["kill"] / one["bare"], 2) for one in each),
        "goal": GOAL,
        "kills": sum(len(one["kill"]) for one in rounds),
    }


@contextlib.contextmanager
def _redis() -> Any:
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "redis.sock"
        command = ["redis-server", "--port", "0", "--unixsocket", str(path)]
        command += ["--save", "", "--appendonly", "no", "--dir", name]
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL)  # noqa: S603
        try:
            while not path.exists():
                if server.poll() is not None:
                    raise RuntimeError("redis-server ended before it listened")
                time.sleep(0.01)
            yield f"unix://{path}"
        finally:
            server.terminate()
            server.wait()


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--kills", type=int, default=600, help="in a round")
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--own")
    parser.add_argument("--listen")
    options = parser.parse_args()
    if options.listen:
        _listen(options.listen)
        return
    if options.own:
        hangup.instrument(bus_url=options.own)
        asyncio.run(_own(options.runs))
        return
    with _redis() as url:
        kills = min(options.kills, options.runs)
        told = report(
            [measure(url, kills, options.runs) for _ in range(options.rounds)]
        )
    if options.json:
        print(json.dumps(told))
        return
    for side, times in told["us"].items():
        print(f"{side:5} p50 {times['p50']:8.1f} us   p99 {times['p99']:8.1f} us")
    ratio = told["ratio"]
    print(f"ratio p50 {ratio['p50']:8.2f}      p99 {ratio['p99']:8.2f}  goal {GOAL}")
    print("p99 of each round:", *told["rounds"])


if __name__ == "__main__":
    main()
