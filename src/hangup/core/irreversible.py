"""``hangup.irreversible``: never started late; once started, finished."""

from __future__ import annotations

import asyncio
import inspect
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, overload

from hangup.core.current import Position, Shield, enter, position
from hangup.core.deadline import Deadline
from hangup.core.interrupt import retrieve
from hangup.core.tree import current_task
from hangup.errors import ApprovalDenied, ArgumentError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from hangup.core.run import Run

T = TypeVar("T")


@overload
async def irreversible(
    action: Callable[..., Awaitable[T]],
    *args: Any,
    needs: float = 0.0,
    approve: Callable[..., Awaitable[bool] | bool] | None = None,
    **kwargs: Any,
) -> T: ...


@overload
async def irreversible(
    action: Callable[..., T],
    *args: Any,
    needs: float = 0.0,
    approve: Callable[..., Awaitable[bool] | bool] | None = None,
    **kwargs: Any,
) -> T: ...


async def irreversible(
    action: Callable[..., Any],
    *args: Any,
    needs: float = 0.0,
    approve: Callable[..., Awaitable[bool] | bool] | None = None,
    **kwargs: Any,
) -> Any:
    """Do what cannot be undone: charge a card, send a mail.

    The step is refused when the run is abandoned or has less than ``needs`` seconds
    left. Once begun it is finished, whatever cancel arrives meanwhile, from hangup or
    anybody else; a cancel is then raised after it. Its own calls are never refused.

    Args:
        action: Called with the further arguments; awaited if it returns an awaitable.
        args: Positional arguments of ``action`` and of ``approve``.
        needs: The least time in seconds the step is worth starting with.
        approve: Asked first, with the same arguments; may wait for a human, and is
            stopped with the run. The time left is checked again after it.
        kwargs: Keyword arguments of ``action`` and of ``approve``.

    Returns:
        What ``action`` returned.

    Raises:
        Stop: The run is abandoned or has too little time; nothing was started.
        ApprovalDenied: ``approve`` said no; nothing was started.
        ArgumentError: ``action`` is no function but, say, a coroutine: that would be
            under way whatever is decided here.
    """
    if not callable(action):
        raise _not_a_function(action)
    here = position()
    run = None if here is None else here.run
    if run is not None:
        run.check(needs)
    if approve is not None:
        answer = approve(*args, **kwargs)
        if inspect.isawaitable(answer):
            answer = await answer
        if not answer:
            raise ApprovalDenied(getattr(action, "__qualname__", repr(action)))
        if run is not None:
            run.check(needs)

    return await _Step(run, needs, partial(action, *args, **kwargs)).through()


async def see_through(run: Run, action: Callable[[], Awaitable[T]]) -> T:
    """Do a step that is known not to be undone: never refused, and once begun finished.

    For adapters, of tools that say so themselves; :func:`irreversible` is for code,
    which can ask first. A cancel that comes meanwhile is raised after it.
    """
    done: T = await _Step(run, 0.0, action, refusable=False).through()
    return done


class _Step:
    """What is done on a task of its own, if it may still begin when that starts.

    The loop may be long in coming to it, and what came meanwhile came before it.
    """

    def __init__(
        self,
        run: Run | None,
        needs: float,
        action: Callable[[], Any],
        *,
        refusable: bool = True,
    ) -> None:
        self._refusable = refusable
        self._run = run
        self._needs = needs
        self._action = action
        self._shield = Shield("irreversible", Deadline())
        self._caller = current_task()
        self._level = 0 if self._caller is None else self._caller.cancelling()

    async def through(self) -> Any:
        """Do it behind a shield, on a task of its own, to its end."""
        tree = None if self._run is None else self._run.work.tree
        held = None if tree is None else tree.shield()
        try:
            return await _finish(asyncio.ensure_future(self._perform()))
        finally:
            self._over()
            if tree is not None:
                tree.unshield(held)

    async def _perform(self) -> Any:
        caller = self._caller
        if caller is not None and caller.cancelling() > self._level:
            raise asyncio.CancelledError
        if self._run is not None and self._refusable:
            self._run.check(self._needs)
        enter(Position(self._run, self._shield))  # of this task: it ends with it
        result = self._action()
        return await result if inspect.isawaitable(result) else result

    def _over(self) -> None:
        """Note that it has ended: what it has left behind is no part of it."""
        self._shield.deadline = Deadline.after(0, self._shield.deadline.clock)


def _not_a_function(action: object) -> ArgumentError:
    if inspect.iscoroutine(action):
        action.close()  # or its owner would hear that it was never awaited
        name = action.__qualname__
        remedy = f"give it the function, hangup.irreversible({name}, ...)"
        return ArgumentError("hangup.irreversible", f"the coroutine {name}()", remedy)
    remedy = "give it a function, and that function's arguments after it"
    return ArgumentError("hangup.irreversible", repr(action), remedy)


async def _finish(task: asyncio.Task[T]) -> T:
    """Await ``task`` to its end through any number of cancels, then let them out."""
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            if task.cancelled():
                raise
            cancelled = error
        except BaseException:
            if not task.done():  # not the task's own: we are being closed
                raise
            break
    if cancelled is not None:
        retrieve(task)
        raise cancelled
    return task.result()
