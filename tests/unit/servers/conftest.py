"""A journal of every run, and a clock moved by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.asgi import Journal, ManualClock

from hangup.core import registry

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def journal() -> Iterator[Journal]:
    observer = Journal()
    registry.add_observer(observer)
    yield observer
    registry.remove_observer(observer)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()
