"""OpenTelemetry's zero code from inside a program that was not started by it."""

from __future__ import annotations

import os

from opentelemetry.instrumentation import auto_instrumentation


def instrument_the_rest() -> None:
    """Do now what ``opentelemetry-instrument`` does first of all."""
    if os.environ.get("INSTRUMENT") == "last":
        auto_instrumentation.initialize()
