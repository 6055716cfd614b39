"""What cannot be undone is never started late; once started, it is finished."""

from __future__ import annotations

import asyncio
import gc
from typing import TYPE_CHECKING

import pytest
from support.core import for_ever, in_loop, settle, spending

import hangup
from hangup.errors import (
    ApprovalDenied,
    ConfigError,
    DeadlineExceeded,
    RunCancelled,
)
from hangup.testing import FakeClock

if TYPE_CHECKING:
    from hangup.core.run import Run


class Card:
    """Something that can be charged, slowly."""

    def __init__(self) -> None:
        self.charged: list[int] = []
        self.asked: list[tuple[int, str]] = []
        self.goes_through = asyncio.Event()

    async def charge(self, cents: int, *, currency: str = "EUR") -> str:
        self.asked.append((cents, currency))
        await self.goes_through.wait()
        self.charged.append(cents)
        return "receipt"

    def charge_now(self, cents: int) -> str:
        self.charged.append(cents)
        return "receipt"


@in_loop
async def test_it_returns_what_the_step_returns() -> None:
    card = Card()
    card.goes_through.set()
    async with hangup.run():
        done = await hangup.irreversible(card.charge, 5, currency="USD", needs=1.0)
    assert done == "receipt"
    assert card.asked == [(5, "USD")]


@in_loop
async def test_a_plain_function_is_taken_too_also_outside_a_run() -> None:
    card = Card()
    assert await hangup.irreversible(card.charge_now, 5) == "receipt"
    assert card.charged == [5]


@in_loop
async def test_it_never_starts_in_an_abandoned_run() -> None:
    card = Card()
    with pytest.raises(RunCancelled):
        async with hangup.run() as run:
            run.cancel("disconnect")
            await hangup.irreversible(card.charge, 5)
    assert card.asked == []


@in_loop
async def test_it_never_starts_with_too_little_time() -> None:
    clock, card = FakeClock(), Card()
    with pytest.raises(DeadlineExceeded, match=r"needs 2 s, 1 s are left"):
        async with hangup.run(budget=10.0, clock=clock):
            clock.advance(9.0)
            await hangup.irreversible(card.charge, 5, needs=2.0)
    assert card.asked == []


@in_loop
async def test_what_it_needs_is_a_time() -> None:
    card = Card()
    async with hangup.run():
        with pytest.raises(ConfigError, match="needs=-1 cannot be used"):
            await hangup.irreversible(card.charge, 5, needs=-1)


@in_loop
async def test_once_started_it_is_finished_and_the_stop_comes_after() -> None:
    clock, card = FakeClock(), Card()
    reached: list[str] = []

    async def work() -> None:
        async with hangup.run(budget=1.0, clock=clock):
            reached.append(await hangup.irreversible(card.charge, 5))
            await for_ever()
            reached.append("went on")

    task = asyncio.create_task(work())
    await settle()
    clock.advance(2.0)
    await settle()
    assert not task.done()
    card.goes_through.set()
    with pytest.raises(DeadlineExceeded):
        await task
    assert card.charged == [5]
    assert reached == ["receipt"]


@in_loop
async def test_irreversible_finishes_though_cancelled_twice() -> None:
    """Cancels of anybody are let out once it is done."""
    card = Card()

    async def work() -> None:
        async with hangup.run() as run:
            runs.append(run)
            await hangup.irreversible(card.charge, 5)

    runs: list[Run] = []
    task = asyncio.create_task(work())
    await settle()
    for _ in range(2):
        task.cancel("theirs")
        await settle()
    runs[0].cancel("disconnect")
    await settle()
    assert not task.done()
    card.goes_through.set()
    with pytest.raises(asyncio.CancelledError, match="theirs"):
        await task
    assert card.charged == [5]


@in_loop
async def test_outside_a_run_it_is_finished_too() -> None:
    card = Card()
    task = asyncio.create_task(hangup.irreversible(card.charge, 5))
    await settle()
    task.cancel()
    await settle()
    assert not task.done()
    card.goes_through.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert card.charged == [5]


@in_loop
async def test_its_own_calls_are_neither_refused_nor_cut() -> None:
    """Also not after the quarter second that a run's other tasks are given."""
    clock, card = FakeClock(), Card()

    async def charge(run: Run) -> str:
        with spending(run):
            hangup.check(needs=60.0)
            await hangup.gather(card.charge(1), spend(run))
        return "receipt"

    async def spend(run: Run) -> str:
        with spending(run):
            return await card.charge(2)

    async def work() -> None:
        async with hangup.run(clock=clock) as run:
            runs.append(run)
            receipts.append(await hangup.irreversible(charge, run))
            await for_ever()

    runs: list[Run] = []
    receipts: list[str] = []
    task = asyncio.create_task(work())
    await settle()
    runs[0].cancel("disconnect")
    await settle()
    clock.advance(0.25)
    await settle()
    clock.advance(1.0)
    await settle()
    assert not task.done()
    card.goes_through.set()
    with pytest.raises(RunCancelled):
        await task
    assert sorted(card.charged) == [1, 2]
    assert receipts == ["receipt"]


@in_loop
async def test_the_error_of_the_step_passes_unchanged() -> None:
    mine = KeyError("declined")

    async def decline() -> None:
        await asyncio.sleep(0)
        raise mine

    with pytest.raises(KeyError) as error:
        async with hangup.run():
            await hangup.irreversible(decline)
    assert error.value is mine


@in_loop
async def test_the_error_of_a_step_that_was_cancelled_meanwhile_is_not_logged() -> None:
    """The cancel comes out; the loop of these tests would report a lost exception."""
    release = asyncio.Event()

    async def decline() -> None:
        await release.wait()
        raise KeyError

    task = asyncio.create_task(hangup.irreversible(decline))
    await settle()
    task.cancel()
    await settle()
    release.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    del task
    gc.collect()


@in_loop
async def test_a_step_that_cancels_itself_is_cancelled() -> None:
    async def give_up() -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await hangup.irreversible(give_up)


# Approval


@in_loop
async def test_approval_is_asked_for_the_same_thing() -> None:
    card = Card()
    card.goes_through.set()
    asked: list[tuple[int, str]] = []

    async def human(cents: int, *, currency: str) -> bool:
        asked.append((cents, currency))
        return True

    async with hangup.run():
        await hangup.irreversible(card.charge, 5, currency="USD", approve=human)
    assert asked == [(5, "USD")]
    assert card.charged == [5]


@in_loop
async def test_what_was_not_approved_is_not_started() -> None:
    card = Card()

    async def human(_cents: int) -> bool:
        return False

    async with hangup.run():
        for approve in (human, lambda _cents: False):
            with pytest.raises(ApprovalDenied, match=r"Card\.charge was not approved"):
                await hangup.irreversible(card.charge, 5, approve=approve)
    assert card.asked == []


@in_loop
async def test_waiting_for_approval_is_stopped_with_the_run() -> None:
    card = Card()

    async def human(_cents: int) -> bool:
        await for_ever()
        return True

    with pytest.raises(RunCancelled):
        async with hangup.run() as run:
            asyncio.get_running_loop().call_soon(run.cancel)
            await hangup.irreversible(card.charge, 5, approve=human)
    assert card.asked == []


@in_loop
async def test_an_approval_that_comes_too_late_starts_nothing() -> None:
    clock, card = FakeClock(), Card()

    def human(_cents: int) -> bool:
        clock.advance(9.0)
        return True

    with pytest.raises(DeadlineExceeded):
        async with hangup.run(budget=10.0, clock=clock):
            await hangup.irreversible(card.charge, 5, needs=2.0, approve=human)
    assert card.asked == []


@in_loop
async def test_approval_is_not_asked_for_what_would_come_too_late() -> None:
    clock, card = FakeClock(), Card()
    asked: list[int] = []

    def human(cents: int) -> bool:
        asked.append(cents)
        return True

    with pytest.raises(DeadlineExceeded):
        async with hangup.run(budget=1.0, clock=clock):
            await hangup.irreversible(card.charge, 5, needs=2.0, approve=human)
    assert asked == []
