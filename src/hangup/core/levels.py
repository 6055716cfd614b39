"""anyio's level cancellation, kept from repeating itself.

A cancelled task group of anyio cancels what runs in it again at every turn of the loop
until it has ended. That cuts every clean-up that awaits (case b6), and a task that eats
its cancels costs a whole core for as long as it lives (case b7). Starlette's
function-style middleware puts every handler into such a group. So a task that hosts one
is not cancelled while others run in it: they get their one cancel first, from the
innermost outwards. And where anyio has begun to repeat, it is made to stop.

Where anyio is not in use, or its inside looks different, nothing is found, and
everything is cancelled as any task is.
"""

# ruff: noqa: SLF001  anyio has no public way to see or to stop it

from __future__ import annotations

import sys
import weakref
from types import CoroutineType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterator

_BACKEND = "anyio._backends._asyncio"
_UNLIKE = (AttributeError, RuntimeError, TypeError)


def scope_of(task: asyncio.Task[Any] | None) -> Any:
    """Return the cancel scope of anyio that ``task`` stands in now, or None."""
    states = getattr(sys.modules.get(_BACKEND), "_task_states", None)
    if states is None or task is None:
        return None
    return getattr(states.get(task), "cancel_scope", None)


def innermost(task: asyncio.Task[Any], since: Any = None) -> list[asyncio.Task[Any]]:
    """Return the tasks that a cancel of ``task`` would go on and on cancelling.

    Only those that host no other: what is around them comes when they have ended. Call
    it on the task's loop.

    Args:
        task: Which may host task groups of anyio.
        since: The scope it stood in when the run was opened; what is there, or around
            it, is no work of the run.
    """
    if scope_of(task) is None:
        return []
    found: set[asyncio.Task[Any]] = set()
    hosts = {task}
    try:
        for scope in _hosted(task, since):
            _collect(scope, found, hosts)
    except _UNLIKE:
        return []
    return [one for one in found if one not in hosts and not one.done()]


def unready(task: asyncio.Task[Any], since: Any = None) -> bool:
    """Whether ``task`` must not be cancelled yet; ``since`` as above.

    So where it waits for something behind a shield of anyio. (Where it only lets others
    take a turn, anyio's own checkpoints stand behind one, and take a cancel well.) And
    where it has not begun: what it was to run would never be awaited.
    """
    coroutine = task.get_coro()
    if (
        isinstance(coroutine, CoroutineType)
        and coroutine.cr_frame is not None
        and not (coroutine.cr_suspended or coroutine.cr_running)
    ):
        return True
    waiter = getattr(task, "_fut_waiter", None)
    if waiter is None or waiter.done():
        return False
    scope = scope_of(task)
    try:
        while scope is not None and scope is not since:
            if scope._shield:
                return True
            scope = scope._parent_scope
    except _UNLIKE:
        return False
    return False


def calm(task: asyncio.Task[Any], since: Any = None) -> None:
    """Stop anyio from repeating the cancels of what ``task`` hosts: each had its one.

    Arguments as for :func:`innermost`.
    """
    try:
        pending = list(_hosted(task, since))
        while pending:
            scope = pending.pop()
            pending += scope._child_scopes
            if scope._cancel_handle is not None:
                scope._cancel_handle.cancel()
                scope._cancel_handle = None
    except _UNLIKE:
        return


def _hosted(task: asyncio.Task[Any], since: Any) -> Iterator[Any]:
    """Yield the scopes that ``task`` entered and has not left."""
    scope = scope_of(task)
    while scope is not None and scope is not since and scope._host_task is task:
        yield scope
        scope = scope._parent_scope


def _collect(
    scope: Any, found: set[asyncio.Task[Any]], hosts: set[asyncio.Task[Any]]
) -> None:
    """Add the tasks below ``scope``, and those of them that host others."""
    inside = set(scope._tasks)
    for child in scope._child_scopes:
        before = len(found)
        _collect(child, found, hosts)
        if len(found) > before:
            inside.add(child._host_task)
    if any(one is not scope._host_task and not one.done() for one in inside):
        hosts.add(scope._host_task)
    found |= inside


class Order:
    """Whose cancel waits for whose end. For one loop."""

    __slots__ = ("_cut", "_pairs")

    def __init__(self) -> None:
        self._pairs: set[tuple[asyncio.Task[Any], asyncio.Task[Any]]] = set()
        self._cut: weakref.WeakSet[asyncio.Task[Any]] = weakref.WeakSet()

    def cut(self, task: asyncio.Task[Any] | None) -> bool:
        """Whether somebody in a group that ``task`` hosts, or hosted, was cancelled."""
        return task is not None and task in self._cut

    def behind(
        self,
        inner: list[asyncio.Task[Any]],
        task: asyncio.Task[Any],
        cancel: Callable[[asyncio.Task[Any]], object],
    ) -> Iterator[asyncio.Task[Any]]:
        """Yield those of ``inner`` that are new; ``cancel(task)`` as each has ended."""

        def ended(one: asyncio.Task[Any]) -> None:
            self._pairs.discard((task, one))
            if not task.done():
                cancel(task)

        for one in inner:
            if (task, one) not in self._pairs:
                self._pairs.add((task, one))
                self._cut.add(task)
                one.add_done_callback(ended)
                yield one
