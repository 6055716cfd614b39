"""A refusal in a worker whose consumer waits for its word."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from support.core import in_loop, settle

import hangup
from hangup.testing import FakeClock


@pytest.mark.parametrize("mode", ["refuse", "enforce"])
def test_a_worker_whose_scope_waits_for_its_word_gets_an_error_it_can_pass_on(
    mode: str,
) -> None:
    """A library's background task hands an ordinary error to its consumer.

    ``Stop`` would end it without a word, and the consumer, who has swallowed its own
    stop or never gets one, would wait for ever.
    """

    clock = FakeClock()

    @in_loop
    async def scenario() -> None:
        words: asyncio.Queue[Exception] = asyncio.Queue()

        async def worker() -> None:
            try:
                hangup.check()
            except Exception as error:  # noqa: BLE001  as libraries do
                words.put_nowait(error)

        with pytest.raises(hangup.DeadlineExceeded):
            async with hangup.run(budget=1, mode=mode, clock=clock):
                clock.advance(2)
                with contextlib.suppress(asyncio.CancelledError):
                    await settle()
                working = asyncio.create_task(worker())
                error = await words.get()
                await working
                raise error

    scenario()
