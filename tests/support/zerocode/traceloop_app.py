"""FastAPI, with Traceloop."""

from __future__ import annotations

import os

from support.books import ToDirectory
from support.zerocode.fastapi_app import app
from support.zerocode.late import instrument_the_rest
from traceloop.sdk import Traceloop  # type: ignore[import-not-found,unused-ignore]

__all__ = ["app"]

# Where Traceloop comes first, the metrics of everybody are Traceloop's.
_exporter = ToDirectory() if os.environ["INSTRUMENT"] == "last" else None
Traceloop.init(app_name="agent", metrics_exporter=_exporter)
instrument_the_rest()
