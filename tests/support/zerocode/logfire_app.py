"""FastAPI, with Logfire."""

from __future__ import annotations

import os

import logfire  # type: ignore[import-not-found,unused-ignore]
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from support.books import ToDirectory
from support.zerocode.fastapi_app import app
from support.zerocode.late import instrument_the_rest

__all__ = ["app"]

# Where Logfire comes first, the metrics of everybody are Logfire's.
_readers = [PeriodicExportingMetricReader(ToDirectory(), 200)]
logfire.configure(
    send_to_logfire=False,
    console=False,
    metrics=logfire.MetricsOptions(
        additional_readers=_readers if os.environ["INSTRUMENT"] == "last" else ()
    ),
)
logfire.instrument_openai()
logfire.instrument_fastapi(app)
instrument_the_rest()
