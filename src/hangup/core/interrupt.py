"""Cancel a task once, without cancelling what others are waiting for.

``Task.cancel()`` cancels the future the task waits on. Where that future is a task that
somebody outside the run awaits too (a single-flight download, a shared model call), the
plain call would take their answer away. Here the waiting task alone is woken with a
``CancelledError`` and the shared one is left to its other waiters.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextvars import Context

    Outsider = Callable[[Context], bool]


def awaited_outside(future: asyncio.Future[Any], outsider: Outsider) -> bool:
    """Whether a callback of ``future`` belongs to a context ``outsider`` accepts.

    Every callback of an asyncio future carries the context it will run in: that of the
    task that awaits it. A future that is not done is read on its own loop's thread.
    """
    callbacks = getattr(future, "_callbacks", None) or ()
    return any(context is not None and outsider(context) for _, context in callbacks)


def interrupt(task: asyncio.Task[Any], outsider: Outsider, message: str) -> bool:
    """Wake ``task`` with a ``CancelledError``, once.

    Call it on the task's loop, from a callback: never on the task that is running,
    where the cancel would leak into the next await (Python 3.11 and 3.12).

    Returns:
        Whether ``Task.cancel`` was used, so that the caller owes one ``uncancel``.
    """
    waiting_on = getattr(task, "_fut_waiter", None)
    if waiting_on is not None:
        children = getattr(waiting_on, "_children", None)
        parts = [waiting_on] if children is None else list(children)
        shared = [
            part
            for part in parts
            if isinstance(part, asyncio.Task) and awaited_outside(part, outsider)
        ]
        if shared and _detach(task, waiting_on):
            for part in parts:
                if part not in shared and part is not waiting_on:
                    part.cancel(message)
            return False
    task.cancel(message)
    return True


def _detach(task: asyncio.Task[Any], future: asyncio.Future[Any]) -> bool:
    """Take ``task`` off ``future`` and wake it cancelled; False where it cannot be."""
    for callback, context in getattr(future, "_callbacks", None) or ():
        if getattr(callback, "__self__", None) is task:
            future.remove_done_callback(callback)
            # Its outcome has lost a reader: an error in it is not worth a log line.
            future.add_done_callback(retrieve)
            cancelled = task.get_loop().create_future()
            cancelled.cancel()
            task.get_loop().call_soon(callback, cancelled, context=context)
            return True
    return False


def retrieve(future: asyncio.Future[Any]) -> None:
    """Read the exception of a future we stopped, so that asyncio does not log it."""
    if not future.cancelled():
        future.exception()
