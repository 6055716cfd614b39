"""FastAPI, with Phoenix."""

from __future__ import annotations

import os

from phoenix.otel import register  # type: ignore[import-not-found,unused-ignore]
from support.zerocode.fastapi_app import app
from support.zerocode.late import instrument_the_rest

__all__ = ["app"]

register(
    auto_instrument=True,
    batch=True,
    endpoint=os.environ["PHOENIX_COLLECTOR_ENDPOINT"],
    protocol="http/protobuf",
    verbose=False,
)
instrument_the_rest()
