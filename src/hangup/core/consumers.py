"""Tasks that take jobs from a queue: whoever started one, it serves others too.

A worker is often started lazily, in the run of the first who needs it. At work for that
run it must stop; but a cancel would end the worker, and whoever comes next would wait
for ever. So what it waits for fails with the ordinary error instead, as on a thread.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from hangup.core import levels
from hangup.core.interrupt import refuse
from hangup.core.tree import current_task

if TYPE_CHECKING:
    import asyncio

    from hangup.core.run import Run

AGAIN_AFTER = 0.01
"""Seconds between two looks at one that must not be woken yet."""

_consumers: weakref.WeakSet[asyncio.Task[Any]] = weakref.WeakSet()


def takes_jobs() -> None:
    """Note that the running task takes what it does from a queue."""
    task = current_task()
    if task is not None:
        _consumers.add(task)


def spared(task: asyncio.Task[Any], run: Run) -> bool:
    """Whether ``task`` is such a worker; if so, refuse what it waits for, once.

    To be called on its loop, where a leftover of ``run`` is to be cancelled.
    """
    if task not in _consumers:
        return False
    _refuse(task, run)
    return True


def _refuse(task: asyncio.Task[Any], run: Run) -> None:
    tree = run.work.tree
    if task.done() or tree.signalled(task) or task not in tree.busy(run.work.encloses):
        return
    if tree.hold_back(task, lambda: _refuse(task, run)):
        return
    # A task group that it hosts would be left behind: it is soon through (a connect).
    if levels.innermost(task) or levels.unready(task) or not refuse(task, run.error()):
        task.get_loop().call_later(AGAIN_AFTER, _refuse, task, run)
        return
    tree.signal(task)
