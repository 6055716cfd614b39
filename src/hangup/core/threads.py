"""``hangup.to_thread``: blocking work that knows its run."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from hangup.core.current import current_run
from hangup.core.work import HOME_THREAD

if TYPE_CHECKING:
    from collections.abc import Callable

P = ParamSpec("P")
T = TypeVar("T")


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
    """
    run = current_run()
    if run is not None:
        run.check(needs)

    def call() -> T:
        HOME_THREAD.set(threading.get_ident())
        try:
            return function(*args, **kwargs)
        finally:
            if run is not None:
                run.work.thread_changed(-1)

    if run is not None:
        run.work.thread_changed(1)
    return await asyncio.to_thread(call)
