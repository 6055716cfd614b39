"""The worker's program: ``celery -A support.celery_worker:app worker``."""

from __future__ import annotations

import os
import time
from typing import Any

SKEW = float(os.environ.get("SKEW", "0"))
if SKEW:  # before anybody keeps a reference
    _real = time.time
    time.time = lambda: _real() + SKEW

from celery.signals import (  # type: ignore[import-untyped]  # noqa: E402
    worker_process_init,
)
from opentelemetry.instrumentation.celery import CeleryInstrumentor  # noqa: E402
from opentelemetry.instrumentation.genai.openai import OpenAIInstrumentor  # noqa: E402
from opentelemetry.sdk.metrics import MeterProvider  # noqa: E402
from opentelemetry.sdk.trace import TracerProvider  # noqa: E402
from support import celery_agent  # noqa: E402
from support.books import writing  # noqa: E402

import hangup  # noqa: E402

app = celery_agent.connect(os.environ[celery_agent.BROKER])


def instrument(**_signal: object) -> None:
    """Install as an application does."""
    tracers = TracerProvider(shutdown_on_exit=False)
    hangup.instrument(tracer_provider=tracers, meter_provider=writing())
    OpenAIInstrumentor().instrument(
        tracer_provider=tracers, meter_provider=MeterProvider(shutdown_on_exit=False)
    )
    if "SPANS" in os.environ:
        instrumentor: Any = CeleryInstrumentor
        instrumentor().instrument(tracer_provider=tracers)
    import openai.resources.chat.completions  # noqa: F401, PLC0415  takes its time


if "IN_CHILDREN" in os.environ:
    worker_process_init.connect(instrument, weak=False)
else:
    instrument()
