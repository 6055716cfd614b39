"""An installed hangup, and a clock that only the test moves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.telemetry import Telemetry, instrumented

from hangup.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opentelemetry.trace import Tracer


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def telemetry() -> Iterator[Telemetry]:
    with instrumented() as telemetry:
        yield telemetry


@pytest.fixture
def tracer(telemetry: Telemetry) -> Tracer:
    return telemetry.tracer()
