"""``hangup.to_thread``: blocking work that knows its run."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeVar

from hangup.core.current import current_run
from hangup.core.work import HOME_THREAD
from hangup.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable

    from hangup.core.run import Run

T = TypeVar("T")

COUNTED: ContextVar[bool] = ContextVar("hangup.counted", default=False)
"""Whether what is handed to a pool right here sees to its run by itself."""


async def to_thread(
    function: Callable[..., T], /, *args: Any, needs: float = 0.0, **kwargs: Any
) -> T:
    """Run ``function`` in a worker thread that carries the run.

    A thread cannot be interrupted. So the time left is checked before it starts, its
    own calls are refused once the run is abandoned (with :class:`~hangup.Stop`, as on
    the run's own task), and a run that stops while the thread goes on reports it as
    unsettled.

    Args:
        function: What to call; it must not touch the event loop.
        args: Its positional arguments.
        needs: The least time in seconds it is worth starting with.
        kwargs: Its keyword arguments.

    Raises:
        Stop: The run is abandoned or has too little time; nothing was started.
        ArgumentError: ``function`` is a coroutine function, or a coroutine: a thread
            would only make it, and run none of it.
    """
    if inspect.iscoroutine(function):
        function.close()  # or its owner would hear that it was never awaited
        name = f"the coroutine {function.__qualname__}()"
        remedy = "await it; to_thread is for functions that block"
        raise ArgumentError("hangup.to_thread", name, remedy)
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        name = getattr(function, "__qualname__", repr(function))
        remedy = "await it where you are; to_thread is for functions that block"
        raise ArgumentError("hangup.to_thread", f"the async function {name}", remedy)
    run = current_run()
    if run is None:
        return await asyncio.to_thread(function, *args, **kwargs)
    run.check(needs)
    turn = _Turn(run)

    def call() -> T:
        turn.begin()
        HOME_THREAD.set(threading.get_ident())
        try:
            return function(*args, **kwargs)
        finally:
            turn.end()

    context = contextvars.copy_context()
    counted = COUNTED.set(True)
    try:
        # As asyncio.to_thread does; here, where the mark is set.
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(None, context.run, call)
    except BaseException:  # the pool is shut down, or has no thread
        turn.give_up()
        raise
    finally:
        COUNTED.reset(counted)
    try:
        return await future
    finally:
        turn.give_up()


class _Turn:
    """Counts work for the run from before it waits for a thread until it has ended."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._lock = threading.Lock()
        self._begun = False
        self._given_up = False
        run.work.thread_changed(1)

    def begin(self) -> None:
        with self._lock:
            self._begun = True
            again = self._given_up
        if again:  # a thread took it in the very moment it was cancelled
            self._run.work.thread_changed(1)

    def end(self) -> None:
        self._run.work.thread_changed(-1)

    def give_up(self) -> None:
        """Note that nobody waits any more: no thread will take what none has taken."""
        with self._lock:
            self._given_up = not self._begun
        if self._given_up:
            self._run.work.thread_changed(-1)
