"""anyio's cancels that repeat for ever, in tasks that a stop reached by way of others.

``levels`` keeps anyio from repeating itself in the task of a scope. But that task may
wait for another one (``create_task``, ``gather``, a task group of asyncio) that hosts a
group of anyio. The cancel goes down to it, and anyio passes it on at every turn of the
loop for as long as somebody in the group eats it: a whole core (case b7).

So once a run is stopped its loop is looked through for such cancels, four times in a
second for five seconds; for all stopped runs together, so that the cost is the same
however many there are. (Not under uvloop, whose handles do not tell their context.)
"""

# ruff: noqa: SLF001  anyio and asyncio have no public way to see or to stop it

from __future__ import annotations

import asyncio
import sys
import weakref
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextvars import Context

    Outside = Callable[[Context], bool]

EVERY: Final = 0.25
"""Seconds between two looks."""

LOOKS: Final = 20
"""How often is looked for the sake of one run."""

_BACKEND = "anyio._backends._asyncio"
_UNLIKE = (AttributeError, RuntimeError, TypeError)

_watched: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Outside, int]] = (
    weakref.WeakKeyDictionary()
)
"""For each loop whose cancels are looked for, and how many looks are left."""


def watch(outside: Outside) -> None:
    """Look for what repeats in a run that is being stopped, on the running loop.

    Args:
        outside: Whether what runs in a context is no work of that run.
    """
    loop = asyncio.get_running_loop()
    watched = _watched.setdefault(loop, {})
    if not watched:
        loop.call_later(EVERY, _look, loop)
    watched[outside] = LOOKS


def _look(loop: asyncio.AbstractEventLoop) -> None:
    watched = _watched[loop]
    for scope, context in tuple(_repeating(loop)):
        if not all(outside(context) for outside in watched):
            scope._cancel_handle.cancel()
            scope._cancel_handle = None
    for outside in tuple(watched):
        watched[outside] -= 1
        if not watched[outside]:
            del watched[outside]
    if watched:
        loop.call_later(EVERY, _look, loop)


def _repeating(loop: asyncio.AbstractEventLoop) -> Iterator[tuple[Any, Context]]:
    """Yield the scopes whose cancel comes again, and in which context it was begun."""
    states = getattr(sys.modules.get(_BACKEND), "_task_states", None) or {}
    seen: set[int] = set()
    try:
        for state in tuple(states.values()):
            scope = state.cancel_scope
            while scope is not None and id(scope) not in seen:
                seen.add(id(scope))
                handle, inner = scope._cancel_handle, scope
                scope = scope._parent_scope
                if handle is not None and handle._loop is loop:
                    yield inner, handle._context
    except _UNLIKE:
        return
