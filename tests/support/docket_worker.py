"""The worker's program: ``python -m support.docket_worker``."""

from __future__ import annotations

import asyncio
import os
import time
from datetime import timedelta

SKEW = float(os.environ.get("SKEW", "0"))
if SKEW:  # before anybody keeps a reference
    _real = time.time
    time.time = lambda: _real() + SKEW

from docket import Worker  # noqa: E402
from opentelemetry.instrumentation.genai.openai import OpenAIInstrumentor  # noqa: E402
from opentelemetry.sdk.metrics import MeterProvider  # noqa: E402
from opentelemetry.sdk.trace import TracerProvider  # noqa: E402
from support.books import writing  # noqa: E402
from support.docket_agent import docket  # noqa: E402

import hangup  # noqa: E402


async def main() -> None:
    async with docket(os.environ["BROKER"]) as ours:
        often = timedelta(milliseconds=20)
        worker = Worker(
            ours,
            redelivery_timeout=timedelta(seconds=2),
            minimum_check_interval=often,
            scheduling_resolution=often,
        )
        async with worker:
            print("ready.", flush=True)  # noqa: T201  the test waits for it
            await worker.run_forever()


if __name__ == "__main__":
    tracers = TracerProvider(shutdown_on_exit=False)
    hangup.instrument(tracer_provider=tracers, meter_provider=writing())
    OpenAIInstrumentor().instrument(
        tracer_provider=tracers, meter_provider=MeterProvider(shutdown_on_exit=False)
    )
    import openai.resources.chat.completions  # noqa: F401  takes its time

    asyncio.run(main())
