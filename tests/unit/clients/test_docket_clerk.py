"""Who tells a docket of runs makes nobody wait, and never grows without bound."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from support.core import in_loop

from hangup.clients import docket
from hangup.otel import once

if TYPE_CHECKING:
    import pytest


def test_what_is_too_much_is_dropped_and_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(docket, "_MOST", 3)
    once.forget()
    done: list[int] = []

    @in_loop
    async def scenario() -> None:
        clerk = docket._Clerk(asyncio.get_running_loop())
        over = asyncio.Event()

        async def errand(number: int) -> None:
            done.append(number)
            if number == 2:
                over.set()

        for number in range(10):
            clerk.submit(lambda number=number: errand(number))  # type: ignore[misc]
        await over.wait()
        over.clear()
        clerk.submit(lambda: errand(2))  # there is room again
        await over.wait()

    scenario()
    assert done == [0, 1, 2, 2]
    assert caplog.text.count("too slow") == 1
