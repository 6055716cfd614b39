"""Thousands of cancels on what many share, each at a random moment.

The same storm is made in two ways: runs of hangup that are killed, and plain tasks that
are cancelled. Then ordinary work is done, and what of it succeeds is counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
import warnings
from typing import TYPE_CHECKING, Any, TypeVar

import hangup

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    Work = Callable[[], Awaitable[object]]
    T = TypeVar("T")

AT_ONCE = 20
LONGEST = 0.02
"""Seconds after which the last of them is cancelled."""


async def _repeat(work: Work, stopped: Callable[[], object]) -> None:
    # Asked, too: there are clients that swallow a cancel.
    while not stopped():
        # What a broken client raises is the business of those that come later.
        with contextlib.suppress(Exception):
            await work()
        await asyncio.sleep(0)


async def _killed(work: Work, after: float) -> None:
    loop = asyncio.get_running_loop()
    with contextlib.suppress(hangup.RunCancelled):
        async with hangup.run(name="storm") as run:
            timer = loop.call_later(after, run.cancel, "killed")
            try:
                await _repeat(work, lambda: run.abandonment)
            finally:
                timer.cancel()


async def _cancelled(work: Work, after: float) -> None:
    async def repeat() -> None:
        await _repeat(work, task.cancelling)

    task = asyncio.ensure_future(repeat())
    asyncio.get_running_loop().call_later(after, task.cancel)
    await asyncio.wait([task])


async def storm(
    work: Work,
    cancels: int,
    *,
    hangup_: bool = True,
    longest: float = LONGEST,
    seed: int = 1,
) -> int:
    """Start ``work`` again and again, and cut it off each time; return how often.

    Args:
        work: Does something with what is shared; called in many tasks at once.
        cancels: How often.
        hangup_: Whether these are runs that are killed, or tasks that are cancelled.
        longest: Seconds that none of them outlives.
        seed: Of the moments.
    """
    moments = random.Random(seed)  # noqa: S311  not for secrets
    one = _killed if hangup_ else _cancelled
    left = iter(range(cancels))
    done = 0

    async def worker() -> None:
        nonlocal done
        for _ in left:
            await one(work, moments.uniform(0, longest))
            done += 1

    await asyncio.gather(*(worker() for _ in range(AT_ONCE)))
    return done


async def succeed(work: Work, runs: int = 20, within: float = 10.0) -> int:
    """Do ``work`` in so many ordinary runs at once; return how many succeeded."""

    async def one() -> bool:
        try:
            async with asyncio.timeout(within), hangup.run(name="calm"):
                await work()
        except Exception:  # noqa: BLE001  whatever it is: it did not succeed
            return False
        return True

    return sum(await asyncio.gather(*(one() for _ in range(runs))))


def without_hangup(main: Coroutine[Any, Any, T]) -> T:
    """Run what nothing mends, and clear away the sockets that it leaves open."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        try:
            return asyncio.run(main)
        finally:
            gc.collect()
