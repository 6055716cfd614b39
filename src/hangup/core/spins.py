"""anyio's cancels that repeat for ever, in tasks that a stop reached by way of others.

``levels`` keeps anyio from repeating itself in the task of a scope. But that task may
wait for another one (``create_task``, ``gather``, a task group of asyncio) that hosts a
group of anyio. The cancel goes down to it, and anyio passes it on at every turn of the
loop for as long as somebody in the group eats it: a whole core (case b7).

So until a stopped run has settled its loop is looked through for such cancels, four
times in a second for at most five seconds; for all stopped runs together, so that the
cost is the same however many there are. (Not under uvloop, whose handles do not tell
their context.)
"""

# ruff: noqa: SLF001  anyio and asyncio have no public way to see or to stop it

from __future__ import annotations

import asyncio
import contextlib
import sys
import weakref
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, MutableMapping
    from contextvars import Context

    Outside = Callable[[Context], bool]

EVERY: Final = 0.25
"""Seconds between two looks."""

LOOKS: Final = 20
"""How often is looked for the sake of one run."""

_BACKEND = "anyio._backends._asyncio"
_TRIES = 8


class _Looks:
    """What is looked for on one loop."""

    def __init__(self) -> None:
        self.left: dict[Outside, int] = {}  # how many looks are left of each
        self.next: asyncio.TimerHandle | None = None
        self.over: list[Outside] = []  # of runs that have settled


_looks: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Looks] = (
    weakref.WeakKeyDictionary()
)


def watch(outside: Outside) -> None:
    """Look for what repeats in a run that is being stopped, on the running loop.

    Args:
        outside: Whether what runs in a context is no work of that run.
    """
    if _BACKEND not in sys.modules:
        return
    loop = asyncio.get_running_loop()
    looks = _looks.setdefault(loop, _Looks())
    looks.left[outside] = LOOKS
    if looks.next is None:
        looks.next = loop.call_later(EVERY, _look, loop)


def forget(loop: asyncio.AbstractEventLoop, outside: Outside) -> None:
    """Look no more for a run that has settled, if nothing of it repeats. Thread-safe.

    Work without a spending call may go on though nothing waits for it.
    """
    looks = _looks.get(loop)
    if looks is None or outside not in looks.left:
        return
    looks.over.append(outside)
    if len(looks.over) == 1:  # one look for all that settle in this turn of the loop
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(_tidy, loop, looks)


def _tidy(loop: asyncio.AbstractEventLoop, looks: _Looks) -> None:
    over, looks.over = looks.over, []
    contexts = [context for _, context in _repeating(loop)]
    for outside in over:
        if all(outside(context) for context in contexts):
            looks.left.pop(outside, None)
    if not looks.left and looks.next is not None:
        looks.next.cancel()
        looks.next = None


def _look(loop: asyncio.AbstractEventLoop) -> None:
    looks = _looks[loop]
    looks.next = None
    watched = tuple(looks.left)
    for scope, context in tuple(_repeating(loop)):
        if not all(outside(context) for outside in watched):
            scope._cancel_handle.cancel()
            scope._cancel_handle = None
    for outside in watched:
        left = looks.left.pop(outside, 0) - 1
        if left > 0:
            looks.left[outside] = left
    if looks.left:
        looks.next = loop.call_later(EVERY, _look, loop)


def _repeating(loop: asyncio.AbstractEventLoop) -> Iterator[tuple[Any, Context]]:
    """Yield the scopes whose cancel comes again, and in which context it was begun.

    Those of other loops are passed over, whatever their handles are like: one loop of
    uvloop in the process must not hide what repeats on the others.
    """
    states = getattr(sys.modules.get(_BACKEND), "_task_states", None) or {}
    seen: set[int] = set()
    for state in _listed(states):
        scope = getattr(state, "cancel_scope", None)
        while scope is not None and id(scope) not in seen:
            seen.add(id(scope))
            handle: Any = getattr(scope, "_cancel_handle", None)
            if getattr(handle, "_loop", None) is loop:
                yield scope, handle._context
            scope = getattr(scope, "_parent_scope", None)


def _listed(states: MutableMapping[Any, Any]) -> tuple[Any, ...]:
    for _ in range(_TRIES):
        with contextlib.suppress(RuntimeError):  # another thread begins or ends a task
            return tuple(states.values())
    return ()  # see the next look
