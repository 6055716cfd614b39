"""Case b7 for tasks that a run has created: whoever eats its stops costs no CPU."""

from __future__ import annotations

import asyncio
import contextlib
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from anyio._backends import _asyncio as anyio_asyncio
from support.core import in_loop
from support.waiting import eventually

import hangup
from hangup.testing import telemetry

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

pytestmark = pytest.mark.timeout(60)

ASLEEP = 0.1
"""Seconds that a stubborn task sleeps at a time, where nobody wakes it."""
CALM_AFTER = 0.25 + 0.5
"""Seconds in which what repeats is found, with some to spare."""
SECONDS = 1.0


class Stubborn:
    """Goes on whatever it is told, and counts how often it was woken."""

    def __init__(self) -> None:
        self.woken = 0
        self.enough = False

    async def __call__(self) -> None:
        while not self.enough:
            with contextlib.suppress(BaseException):
                await asyncio.sleep(ASLEEP)
            self.woken += 1


async def created(work: Stubborn) -> None:
    """One task, that nobody awaits."""
    task = asyncio.create_task(work())
    try:
        await asyncio.Event().wait()
    finally:
        assert not task.done()


async def awaited(work: Stubborn) -> None:
    await asyncio.create_task(work())


async def gathered(work: Stubborn) -> None:
    await asyncio.gather(work(), asyncio.Event().wait())


async def in_a_task_group(work: Stubborn) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(work())


async def in_a_group_of_anyio(work: Stubborn) -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(work)


async def in_a_group_of_a_task(work: Stubborn) -> None:
    await asyncio.create_task(in_a_group_of_anyio(work))


async def in_a_gathered_group(work: Stubborn) -> None:
    await asyncio.gather(in_a_group_of_anyio(work), asyncio.Event().wait())


async def in_a_group_in_a_task_group(work: Stubborn) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(in_a_group_of_anyio(work))


async def in_a_group_of_a_task_in_a_group(work: Stubborn) -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(in_a_group_of_a_task, work)


SHAPES: list[Callable[[Stubborn], Awaitable[None]]] = [
    created,
    awaited,
    gathered,
    in_a_task_group,
    in_a_group_of_anyio,
    in_a_group_of_a_task,
    in_a_gathered_group,
    in_a_group_in_a_task_group,
    in_a_group_of_a_task_in_a_group,
]


def test_b7_stubborn_task_of_a_run_spins_no_cpu() -> None:
    """It is woken by its own alarm, and not at every turn of the loop."""

    live: list[hangup.Run] = []

    async def killed(
        shape: Callable[[Stubborn], Awaitable[None]], it: Stubborn
    ) -> None:
        with contextlib.suppress(hangup.RunAbandoned):
            async with hangup.run() as run:
                live.append(run)
                await shape(it)

    # What a loop of another kind, such as uvloop's, has left among anyio's states: its
    # handles are like no others.
    elsewhere = SimpleNamespace(_cancel_handle=object(), _parent_scope=None)

    @in_loop
    async def check() -> None:
        states: Any = anyio_asyncio._task_states
        odd = asyncio.create_task(asyncio.sleep(0))
        states[odd] = SimpleNamespace(cancel_scope=elsewhere)
        with telemetry(settle=0.3):
            them = {shape: Stubborn() for shape in SHAPES}
            runs = [asyncio.create_task(killed(*each)) for each in them.items()]
            await eventually(lambda: all(it.woken for it in them.values()))
            for run in live:
                run.cancel()
            await asyncio.sleep(CALM_AFTER)
            before = {shape: it.woken for shape, it in them.items()}
            began = time.monotonic()
            await asyncio.sleep(SECONDS)
            alarms = (time.monotonic() - began) / ASLEEP
            woken = {
                shape.__name__: it.woken - before[shape] for shape, it in them.items()
            }
            for it in them.values():
                it.enough = True
            await asyncio.wait(runs, timeout=5)
            rest = asyncio.all_tasks() - {asyncio.current_task()}
            if rest:
                await asyncio.wait(rest, timeout=5)
        # Those whose group awakes them a second time have that one wakening more.
        assert {name: n for name, n in woken.items() if n > alarms + 3} == {}

    check()
