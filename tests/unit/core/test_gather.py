"""Siblings end together: in order, or all of them stopped and awaited."""

from __future__ import annotations

import asyncio
import gc
from typing import TYPE_CHECKING, Any

import pytest
from support.core import for_ever, in_loop, settle

import hangup
from hangup import config
from hangup.config import Settings
from hangup.core.scope import RunScope
from hangup.errors import ConfigError, DeadlineExceeded, RunCancelled, Stop
from hangup.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Coroutine


class Tools:
    """Tools that work until released, and what became of them."""

    def __init__(self) -> None:
        self.release = asyncio.Event()
        self.started: list[int] = []
        self.running = 0
        self.most = 0
        self.cleaned: list[int] = []

    async def tool(self, number: int) -> int:
        self.started.append(number)
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await self.release.wait()
        finally:
            await asyncio.sleep(0)
            self.running -= 1
            self.cleaned.append(number)
        return number * 10

    def several(self, count: int) -> list[Coroutine[Any, Any, int]]:
        return [self.tool(number) for number in range(count)]


async def fail(error: BaseException) -> int:
    await asyncio.sleep(0)
    raise error


@in_loop
async def test_results_come_in_the_order_given() -> None:
    async def after(event: asyncio.Event, value: int) -> int:
        await event.wait()
        return value

    first, second = asyncio.Event(), asyncio.Event()
    gathered = asyncio.create_task(
        hangup.gather(after(first, 1), after(second, 2), asyncio.sleep(0, 3))
    )
    await settle()
    second.set()
    await settle()
    first.set()
    assert await gathered == [1, 2, 3]


@in_loop
async def test_nothing_to_gather_is_an_empty_list() -> None:
    assert await hangup.gather() == []
    assert await hangup.gather(limit=3) == []


@in_loop
async def test_tasks_and_futures_are_taken_too_also_twice() -> None:
    future = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(asyncio.sleep(0, "task"))
    future.set_result("future")
    assert await hangup.gather(task, future, task) == ["task", "future", "task"]
    assert await hangup.gather(task, task, limit=1) == ["task", "task"]


@in_loop
async def test_no_more_than_the_limit_run_at_a_time_and_all_run() -> None:
    tools = Tools()
    gathered = asyncio.create_task(hangup.gather(*tools.several(7), limit=3))
    await settle()
    assert tools.started == [0, 1, 2]
    tools.release.set()
    assert await gathered == [0, 10, 20, 30, 40, 50, 60]
    assert tools.most == 3


@in_loop
async def test_b5_gather_leaves_siblings() -> None:
    """When one of several parallel tools fails, the others are stopped and awaited."""
    tools = Tools()
    mine = ValueError("A failed")
    with pytest.raises(ValueError, match="A failed") as error:
        async with hangup.run() as run:
            await hangup.gather(tools.tool(1), fail(mine), tools.tool(2))
    assert error.value is mine
    assert tools.started == [1, 2]
    assert sorted(tools.cleaned) == [1, 2]
    assert run.cause == "failed"


@in_loop
async def test_without_a_run_siblings_end_together_too() -> None:
    tools = Tools()
    with pytest.raises(KeyError):
        await hangup.gather(*tools.several(2), fail(KeyError()))
    assert sorted(tools.cleaned) == [0, 1]


@in_loop
async def test_what_has_not_started_when_a_sibling_fails_never_starts() -> None:
    tools = Tools()
    later = asyncio.get_running_loop().create_future()
    with pytest.raises(KeyError):
        await hangup.gather(
            tools.tool(0), fail(KeyError()), tools.tool(1), later, limit=2
        )
    assert tools.started == [0]
    assert later.cancelled()


@in_loop
async def test_of_two_failures_in_one_turn_the_first_given_is_told() -> None:
    errors = [ValueError("first"), ValueError("second")]
    for order in (errors, errors[::-1]):
        with pytest.raises(ValueError, match=str(order[0])):
            await hangup.gather(*(fail(error) for error in order))


@in_loop
async def test_a_stopped_run_stops_and_awaits_them_all() -> None:
    tools = Tools()
    with pytest.raises(RunCancelled):
        async with hangup.run() as run:
            asyncio.get_running_loop().call_soon(run.cancel)
            await hangup.gather(*tools.several(5), limit=2)
    assert tools.started == [0, 1]
    assert sorted(tools.cleaned) == [0, 1]


@in_loop
async def test_in_an_abandoned_run_nothing_starts() -> None:
    tools = Tools()
    with pytest.raises(RunCancelled):
        async with hangup.run() as run:
            run.cancel()
            await hangup.gather(*tools.several(2))
    assert tools.started == []


@in_loop
async def test_in_refuse_mode_what_has_started_ends_and_nothing_more_starts() -> None:
    clock, tools = FakeClock(), Tools()
    with pytest.raises(DeadlineExceeded) as error:
        async with RunScope(1.0, mode="refuse", name="r", clock=clock) as run:
            clock.advance(5.0)
            await hangup.gather(*tools.several(2))
    assert tools.started == []
    assert error.value.elapsed == 1.0
    assert run.abandonment is not None
    assert run.abandonment.at == run.started_at + 1.0


@in_loop
async def test_in_observe_everything_runs() -> None:
    tools = Tools()
    tools.release.set()
    async with hangup.run(mode="observe") as run:
        run.cancel("disconnect")
        assert await hangup.gather(*tools.several(2)) == [0, 10]


@in_loop
async def test_a_latent_run_is_left_latent() -> None:
    with RunScope(latent=True, server=True) as run:
        run.cancel("disconnect")
        assert await hangup.gather(asyncio.sleep(0, 1)) == [1]
        assert run.latent


@in_loop
async def test_a_latent_run_past_its_deadline_is_nobodys_business_here_either() -> None:
    clock = FakeClock()
    with RunScope(1.0, latent=True, server=True, clock=clock) as run:
        clock.advance(2.0)
        assert await hangup.gather(asyncio.sleep(0, 1)) == [1]
        assert run.latent
        assert run.token.abandonment is None


@in_loop
async def test_a_cancel_from_outside_stops_and_awaits_them_all() -> None:
    tools = Tools()
    gathered = asyncio.create_task(hangup.gather(*tools.several(2)))
    await settle()
    gathered.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gathered
    assert sorted(tools.cleaned) == [0, 1]


@in_loop
async def test_the_stop_of_a_sibling_comes_out_as_the_stop() -> None:
    tools = Tools()

    async def checks() -> int:
        hangup.check()
        return 0

    with pytest.raises(RunCancelled):
        async with hangup.run(mode="refuse") as run:
            task = asyncio.create_task(hangup.gather(tools.tool(0), checks()))
            run.cancel()
            with pytest.raises(Stop):
                await task
            hangup.check()


@in_loop
async def test_a_sibling_that_does_not_stop_does_not_hold_the_rest() -> None:
    config.use(Settings(settle=0.0))
    release = asyncio.Event()

    async def stubborn() -> int:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                cancels.append("one")
        raise ArithmeticError("later")

    cancels: list[str] = []
    with pytest.raises(KeyError):
        await hangup.gather(stubborn(), fail(KeyError()))
    assert cancels == ["one"]
    release.set()
    await settle()
    gc.collect()


@in_loop
async def test_a_shared_task_that_a_sibling_waits_for_is_left_to_the_others() -> None:
    done = asyncio.Event()
    shared = asyncio.create_task(done.wait())

    async def use_shared() -> bool:
        return await shared

    async def healthy() -> bool:
        async with hangup.run():
            return await shared

    other = asyncio.create_task(healthy())
    with pytest.raises(RunCancelled):
        async with hangup.run() as run:
            asyncio.get_running_loop().call_later(0, run.cancel)
            await hangup.gather(use_shared(), for_ever())
    assert not shared.done()
    done.set()
    assert await other


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_that_lets_nothing_run_is_refused_by_name(limit: int) -> None:
    @in_loop
    async def scenario() -> None:
        tools = Tools()
        with pytest.raises(ConfigError, match=f"limit={limit} cannot be used: give a"):
            await hangup.gather(*tools.several(2), limit=limit)
        assert tools.started == []

    scenario()


@in_loop
async def test_of_failures_in_one_turn_the_first_given_comes_out() -> None:
    async def fail(number: int) -> None:
        raise ValueError(number)

    for _ in range(5):
        with pytest.raises(ValueError, match=r"^0$"):
            await hangup.gather(*(fail(number) for number in range(16)))
