"""Cancel a task once, without cancelling what others are waiting for.

``Task.cancel()`` cancels the future the task waits on. Where that future is a task that
somebody outside the run awaits too (a single-flight download, a shared model call), the
plain call would take their answer away. Here the tasks of the run that wait for it are
woken with a ``CancelledError`` and the shared one is left to its other waiters.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextvars import Context

    Outsider = Callable[[Context], bool]

_MOST_FOLLOWED = 1_000
_NOBODY = ("hangup.core", "asyncio.base_events", "uvloop")


def awaited_outside(future: asyncio.Future[Any], outsider: Outsider) -> bool:
    """Whether somebody waits for ``future`` in a context that ``outsider`` accepts.

    Every callback of an asyncio future carries the context it will run in: that of the
    task that awaits it. Of a bare future only tasks that await it count: its maker may
    watch it for a cancel, and must hear of one. Our own callbacks count for nobody. A
    future that is not done is read on its own loop's thread.
    """
    is_task = isinstance(future, asyncio.Task)
    return any(
        context is not None
        and outsider(context)
        and not (getattr(callback, "__module__", None) or "").startswith(_NOBODY)
        and (is_task or isinstance(getattr(callback, "__self__", None), asyncio.Task))
        for callback, context in getattr(future, "_callbacks", None) or ()
    )


def interrupt(task: asyncio.Task[Any], outsider: Outsider, message: str) -> bool:
    """Wake ``task`` with a ``CancelledError``, once.

    What it waits for is cancelled as by ``Task.cancel``, all the way down, but for what
    somebody outside waits for too. (Not below a task group or ``asyncio.wait_for`` of
    Python 3.11: these cancel by themselves. Shield what is shared there.)

    Call it on the task's loop, from a callback: never on the task that is running,
    where the cancel would leak into the next await (Python 3.11 and 3.12).

    Returns:
        Whether ``Task.cancel`` was used, so that the caller owes one ``uncancel``.
    """
    waiting_on = getattr(task, "_fut_waiter", None)
    if (
        waiting_on is not None
        and not _is_own(waiting_on, task, outsider)
        and _reaches_shared(waiting_on, outsider)
        and _detach(task, waiting_on)
    ):
        for part in _parts(waiting_on):
            if not awaited_outside(part, outsider):
                cancel_alone(part, outsider, message)
        return False
    task.cancel(message)
    return True


def cancel_alone(future: asyncio.Future[Any], outsider: Outsider, message: str) -> None:
    """Cancel a task or future, but nothing it waits for that outsiders wait for too."""
    if isinstance(future, asyncio.Task) and future is not asyncio.current_task():
        interrupt(future, outsider, message)
    else:
        future.cancel(message)


def refuse(task: asyncio.Task[Any], error: Exception) -> bool:
    """Wake ``task`` with an ordinary error in place of what it waits for.

    That is cancelled, unless it is a task. Call it on the task's loop, from a callback.

    Returns:
        Whether it was woken: not where it waits for nothing, or for something that
        cannot be taken from it.
    """
    waiting_on = getattr(task, "_fut_waiter", None)
    if waiting_on is None or waiting_on.done():
        return False
    refused = task.get_loop().create_future()
    refused.set_exception(error)
    if not _detach(task, waiting_on, refused):
        return False
    if not isinstance(waiting_on, asyncio.Task):
        waiting_on.cancel()
    return True


def _parts(future: asyncio.Future[Any]) -> list[asyncio.Future[Any]]:
    """Return what a cancel of ``future`` would cancel: the children of a gather."""
    children = getattr(future, "_children", None)
    return [future] if children is None else list(children)


def _is_own(
    future: asyncio.Future[Any], task: asyncio.Task[Any], outsider: Outsider
) -> bool:
    """Whether ``future`` is a bare one that nobody waits for but ``task``.

    Nearly every task that is stopped waits for such: there is nothing to follow.
    """
    if type(future) is not asyncio.Future:
        return False
    callbacks: list[Any] = getattr(future, "_callbacks", None) or []
    if len(callbacks) != 1:
        return False
    [(callback, context)] = callbacks
    return getattr(callback, "__self__", None) is task and not outsider(context)


def _reaches_shared(future: asyncio.Future[Any], outsider: Outsider) -> bool:
    """Whether a cancel of ``future`` would reach one that somebody outside awaits."""
    pending, seen = [future], 0
    while pending and seen < _MOST_FOLLOWED:
        seen += 1
        link = pending.pop()
        if not link.done() and awaited_outside(link, outsider):
            return True
        pending += (part for part in _parts(link) if part is not link)
        if (below := getattr(link, "_fut_waiter", None)) is not None:
            pending.append(below)
    return False


def _detach(
    task: asyncio.Task[Any],
    future: asyncio.Future[Any],
    told: asyncio.Future[Any] | None = None,
) -> bool:
    """Take ``task`` off ``future``; False where it cannot be.

    It wakes with what ``told`` tells, or cancelled.
    """
    for callback, context in getattr(future, "_callbacks", None) or ():
        if getattr(callback, "__self__", None) is task:
            future.remove_done_callback(callback)
            # Its outcome has lost a reader: an error in it is not worth a log line.
            future.add_done_callback(retrieve)
            if told is None:
                told = task.get_loop().create_future()
                told.cancel()
            task.get_loop().call_soon(callback, told, context=context)
            return True
    return False


def retrieve(future: asyncio.Future[Any]) -> None:
    """Read the exception of a future we stopped, so that asyncio does not log it."""
    if not future.cancelled():
        future.exception()
