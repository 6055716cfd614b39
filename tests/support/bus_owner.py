"""A process with live runs on the bus: started by ``buses.Owner``, which it tells.

It reads a line of JSON for each thing to do, and writes one for each thing that
happened.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider

import hangup
from hangup.core import remote
from hangup.otel import instrumentor

reader = InMemoryMetricReader()


def say(**words: object) -> None:
    """Tell whoever started this process."""
    sys.stdout.write(json.dumps(words) + "\n")
    sys.stdout.flush()


def gauge() -> float | None:
    """Return what ``hangup.bus.up`` is exported as; None where it is absent."""
    data = reader.get_metrics_data()
    for resource in data.resource_metrics if data else ():
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                if metric.name == "hangup.bus.up":
                    points: Any = metric.data.data_points
                    return next((float(point.value) for point in points), None)
    return None


async def hold(options: dict[str, Any]) -> None:
    """Open a run, and tell how it ends."""
    began = time.monotonic()
    run_id, cause = "", ""
    try:
        async with hangup.run(**options) as run:
            run_id = run.id
            say(opened=run.id)
            await asyncio.Event().wait()
    except hangup.RunAbandoned as error:
        cause = error.cause
    at = time.monotonic()
    say(ended=run_id, cause=cause, at=at, after=at - began)


async def runs(count: int) -> None:
    """Hold runs, and do as told."""
    tasks = [asyncio.create_task(hold({"budget": 600})) for _ in range(count)]
    while line := await asyncio.to_thread(sys.stdin.readline):
        told = json.loads(line)
        if "open" in told:
            tasks.append(asyncio.create_task(hold(told["open"])))
        elif "verdict" in told:
            found = await asyncio.to_thread(remote.verdict, told["verdict"])
            say(verdict=None if found is None else found.cause)
        else:
            say(gauge=gauge())


def forks(_count: int) -> None:
    """Join the bus, fork, and hold a run in the child only."""
    while not getattr(remote.reach(), "up", False):
        time.sleep(0.01)
    child = os.fork()
    if child == 0:
        asyncio.run(hold({"budget": 600}))
        return
    os.waitpid(child, 0)
    say(gauge=gauge())
    sys.stdin.readline()


def main() -> None:
    """Run the program that was asked for."""
    providers: dict[str, Any] = {
        "tracer_provider": TracerProvider(shutdown_on_exit=False),
        "meter_provider": MeterProvider([reader], shutdown_on_exit=False),
    }
    # Importing every client that is installed takes seconds, and has no part here.
    instrumentor._ADAPTERS = ("hangup.bus",)  # type: ignore[assignment]
    hangup.instrument(**providers)
    program, count = sys.argv[1], int(sys.argv[2])
    if program == "forks":
        forks(count)
    else:
        asyncio.run(runs(count))


if __name__ == "__main__":
    main()
