"""A bus in memory, and this process on it."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

from hangup import bus, config
from hangup.bus.memory import Memory, memory

if TYPE_CHECKING:
    from collections.abc import Iterator

_numbers = itertools.count()


@pytest.fixture
def url() -> str:
    return f"memory://test-{next(_numbers)}"


@pytest.fixture
def there(url: str) -> Memory:
    return memory(url.partition("//")[2])


@pytest.fixture
def joined(url: str, there: Memory) -> Iterator[Memory]:
    """This process is on the bus, and listens."""
    config.use(config.with_keywords(config.from_environment(), bus_url=url))
    bus.install()
    with there.changed:
        assert there.changed.wait_for(lambda: there.ears, 10)
    yield there
    bus.uninstall()
