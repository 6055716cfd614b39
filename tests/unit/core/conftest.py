"""Fixtures that several tests of the core share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.sdk.trace import TracerProvider

from hangup.otel.instrumentor import HangupInstrumentor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opentelemetry.trace import Tracer


@pytest.fixture
def tracer() -> Iterator[Tracer]:
    """Of an installed hangup that keeps ledgers, but no metrics: they cost the most."""
    provider, instrumentor = TracerProvider(), HangupInstrumentor()
    instrumentor.instrument(
        tracer_provider=provider, meter_provider=NoOpMeterProvider()
    )
    yield provider.get_tracer("test")
    instrumentor.uninstrument()
    provider.shutdown()
