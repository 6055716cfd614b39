"""A process whose interpreter ends with runs in flight: ``python -m support.exiting``.

Exports to the file ``SPENT`` when it must, and never before.
"""

from __future__ import annotations

import asyncio
import sys
import threading

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.trace import TracerProvider
from support.telemetry import chat, used
from support.tofile import ToFile

import hangup
from hangup.otel import names


class _More(ToFile):
    metrics = ToFile.metrics | {names.METERED_TOKENS, names.UNKNOWN_CALLS}


tracers = TracerProvider()
meters = MeterProvider([PeriodicExportingMetricReader(_More(), 3_600_000)])
tracer = tracers.get_tracer("test")
kept: list[object] = []


def spend(tokens: int) -> None:
    with chat(tracer) as span:
        used(span, tokens, 0)


def on_a_thread(ready: threading.Event) -> None:
    """Have a run, and a call in it, that the interpreter does not wait for."""
    with hangup.run(name="thread"):
        spend(10)
        with chat(tracer):
            ready.set()
            threading.Event().wait()


async def in_a_task() -> None:
    async with hangup.run(name="task"):
        spend(100)
        with chat(tracer):
            await asyncio.Event().wait()


async def main() -> None:
    kept.append(asyncio.create_task(in_a_task()))
    await asyncio.sleep(0)
    # Nobody closes this one, and it is still in use.
    scope = hangup.run(name="open")
    kept.append(scope)
    await scope.__aenter__()
    spend(1_000)
    # As it ends for a framework that was interrupted: no scope is left.
    asyncio.get_running_loop().stop()
    await asyncio.Event().wait()


def end() -> None:
    """Set all of it up, and end in the way that was asked for."""
    hangup.instrument(tracer_provider=tracers, meter_provider=meters, mode="observe")
    ready = threading.Event()
    threading.Thread(target=on_a_thread, args=(ready,), daemon=True).start()
    ready.wait()
    loop = asyncio.new_event_loop()
    kept.append(loop)
    kept.append(loop.create_task(main()))
    loop.run_forever()
    spend(10_000)
    if sys.argv[1:] == ["error"]:
        raise LookupError("the process fails")
    sys.exit(3)


if __name__ == "__main__":
    end()
