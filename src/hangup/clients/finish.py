"""Work that is done to its end, whoever is cancelled meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from typing import TYPE_CHECKING, Any, Final, TypeVar

from hangup.core.interrupt import retrieve

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    T = TypeVar("T")

_tasks: Final[set[asyncio.Task[Any]]] = set()
"""The loop itself may let go of a task that waits."""


def running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the running loop; None where there is none, or none of asyncio's."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _start(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    task = asyncio.get_running_loop().create_task(work)
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)
    task.add_done_callback(retrieve)  # whoever was cancelled does not hear of it
    return task


async def to_the_end(work: Coroutine[Any, Any, T]) -> T:
    """Await ``work``; cancelled, leave at once and let it go on.

    Whoever calls this sees to it that it does not go on for ever.
    """
    return await asyncio.shield(_start(work))


def soon(work: Callable[[], Coroutine[Any, Any, object]]) -> None:
    """Start ``work`` without waiting; it keeps nothing of whoever started it alive.

    Outside an asyncio loop nothing is done: trio's own shields hold.
    """
    if running_loop() is not None:
        contextvars.Context().run(_start, _quietly(work))


async def _quietly(work: Callable[[], Coroutine[Any, Any, object]]) -> None:
    with contextlib.suppress(Exception):  # the connection is gone either way
        await work()
