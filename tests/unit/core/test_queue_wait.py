"""Time spent waiting for a place counts, and a stopped waiter frees its place."""

from __future__ import annotations

import asyncio

from support.core import in_loop, settle, witness

import hangup
from hangup.errors import DeadlineExceeded
from hangup.testing import FakeClock


@in_loop
async def test_e6_queue_wait_counts() -> None:
    """One slot, ten runs of 3 s that need 2 s each: only two ever reach the model."""
    clock = FakeClock()
    slot = asyncio.Semaphore(1)
    requests: list[int] = []

    async def model(number: int) -> str:
        requests.append(number)
        answered = asyncio.Event()
        clock.call_at(clock.monotonic() + 2.0, answered.set)
        await answered.wait()
        return f"answer {number}"

    async def agent(number: int) -> str:
        async with hangup.run(budget=3.0, name="agent", clock=clock) as run, slot:
            run.check()
            return await model(number)

    async def pass_time(seconds: float) -> None:
        for _ in range(round(seconds * 4)):
            clock.advance(0.25)
            await settle()

    with witness() as seen:
        tasks = [asyncio.create_task(agent(number)) for number in range(10)]
        await settle()
        await pass_time(5.0)
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert outcomes[0] == "answer 0"
        assert all(isinstance(one, DeadlineExceeded) for one in outcomes[1:])
        assert requests == [0, 1]
        assert seen.of("abandoned") == [("abandoned", "agent", "deadline")] * 9
        assert seen.of("settled") == [("settled", "agent", 0)] * 9

        eleventh = asyncio.create_task(agent(10))
        await settle()
        await pass_time(2.0)
        assert await eleventh == "answer 10"


@in_loop
async def test_e6_what_is_left_after_the_wait_must_be_worth_the_start() -> None:
    """With `needs`, the second is refused before its call as well."""
    clock = FakeClock()
    slot = asyncio.Semaphore(1)
    requests: list[int] = []

    async def agent(number: int) -> None:
        async with hangup.run(budget=3.0, clock=clock) as run, slot:
            run.check(needs=2.0)
            requests.append(number)
            answered = asyncio.Event()
            clock.call_at(clock.monotonic() + 2.0, answered.set)
            await answered.wait()

    with witness() as seen:
        tasks = [asyncio.create_task(agent(number)) for number in range(3)]
        await settle()
        clock.advance(2.0)
        await settle()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert requests == [0]
    assert [type(one) for one in outcomes] == [
        type(None),
        DeadlineExceeded,
        DeadlineExceeded,
    ]
    assert len(seen.of("refused")) == 2
