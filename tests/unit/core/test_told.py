"""In which order observers hear of a run, though one of them acts on what it hears."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import pytest
from support.core import for_ever, in_loop, opened, settle, spending, witness

import hangup
from hangup.core import registry
from hangup.core.opening import open_call
from hangup.core.registry import RunObserver
from hangup.errors import RunCancelled
from hangup.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hangup.core.run import Run


class Books(RunObserver):
    """Ends the calls of a run as soon as it hears that it was abandoned."""

    def __init__(self) -> None:
        self.open: list[int] = []

    def abandoned(self, run: Run) -> None:
        for number in self.open:
            run.work.call_closed(number)


@pytest.fixture
def books() -> Iterator[Books]:
    kept = Books()
    registry.add_observer(kept)
    yield kept
    registry.remove_observer(kept)


@in_loop
async def fails(books: Books) -> None:
    with contextlib.suppress(ValueError):
        async with hangup.run(name="fails") as run:
            books.open.append(open_call(run))
            raise ValueError


def test_nobody_hears_that_a_run_has_settled_before_that_it_was_abandoned(
    books: Books,
) -> None:
    with witness() as seen:
        fails(books)
    assert [event[0] for event in seen.events] == [
        *("started", "abandoned", "closed", "settled")
    ]


def test_a_run_that_is_abandoned_after_it_closed_settles_once_all_have_heard(
    books: Books,
) -> None:
    """A server may leave the scope before it knows whether the answer arrived."""
    scope = hangup.run(name="served", server=True, clock=FakeClock())
    with witness() as seen:
        run = opened(scope)
        books.open.append(open_call(run))
        scope.__exit__(None, None, None)
        run.cancel("disconnect")
    assert [event[0] for event in seen.events] == [
        *("started", "closed", "abandoned", "settled")
    ]


@in_loop
async def test_a_call_left_open_on_the_scopes_own_task_holds_nothing_up() -> None:
    """A stream that was dropped half-way may be ended by nobody."""
    with witness() as seen:
        with (
            contextlib.suppress(ValueError),
            hangup.run(name="drops", clock=FakeClock()) as run,
        ):
            open_call(run)
            raise ValueError
        assert seen.of("settled") == [("settled", "drops", 0)]


@in_loop
async def test_a_task_that_was_stopped_and_still_cleans_up_has_not_settled() -> None:
    cleaned = asyncio.Event()
    runs: list[Run] = []

    async def left_over(run: Run) -> None:
        try:
            with spending(run):
                await for_ever()
        finally:
            await cleaned.wait()  # its call has ended, it has not

    async def work() -> None:
        async with hangup.run(name="leaves", clock=FakeClock()) as run:
            runs.append(run)
            tasks.append(asyncio.create_task(left_over(run)))
            await for_ever()

    tasks: list[asyncio.Task[None]] = []
    with witness() as seen:
        request = asyncio.create_task(work())
        await settle()
        runs[0].cancel()
        await settle()
        assert seen.of("closed") == [("closed", "leaves")]
        assert seen.of("settled") == []
        assert not request.done()
        cleaned.set()
        with pytest.raises(RunCancelled):
            await request
        assert tasks[0].cancelled()
        assert seen.of("settled") == [("settled", "leaves", 0)]
