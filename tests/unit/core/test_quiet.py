"""A stop that ends up with the event loop's exception handler is not logged."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import pytest

from hangup.core import quiet
from hangup.errors import Stop

if TYPE_CHECKING:
    from collections.abc import Iterator

STOP = Stop("0" * 32, "research", "disconnect")


@pytest.fixture
def installed() -> Iterator[None]:
    quiet.install()
    quiet.install()
    yield
    quiet.uninstall()


def told(error: BaseException, caplog: pytest.LogCaptureFixture) -> list[str]:
    """What is logged when a library tells its loop of an error."""

    async def tell() -> None:
        handler = asyncio.get_running_loop().call_exception_handler
        handler({"message": "a tool task failed", "exception": error})

    with caplog.at_level(logging.DEBUG, "asyncio"):
        asyncio.run(tell())
    return [record.message for record in caplog.records if record.exc_info]


@pytest.mark.usefixtures("installed")
def test_a_stop_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    assert told(STOP, caplog) == []


@pytest.mark.usefixtures("installed")
def test_any_other_error_is(caplog: pytest.LogCaptureFixture) -> None:
    assert told(LookupError("lost"), caplog) == ["a tool task failed"]


def test_when_it_was_taken_off_a_stop_is_logged_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    quiet.install()
    quiet.uninstall()
    quiet.uninstall()
    assert told(STOP, caplog) == ["a tool task failed"]
