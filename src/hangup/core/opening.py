"""Where a spending call begins, and the task that it may be stopped on.

This is on the path of every model call, so it is one function and calls none that a
look-up can stand for.
"""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Any, Final

from hangup.core.current import POSITION, seen

if TYPE_CHECKING:
    from hangup.core.run import Run

# Before 3.12 ``asyncio.current_task`` is a Python frame around a look-up in this.
_TASKS: Final[dict[Any, asyncio.Task[Any]] | None] = (
    getattr(asyncio.tasks, "_current_tasks", None)
    if sys.version_info < (3, 12)
    else None
)
loop_here = asyncio._get_running_loop  # noqa: SLF001
"""Returns the running loop or None; unlike ``get_running_loop`` it raises nothing."""


def open_call(run: Run, call: object = None) -> int:
    """Note a spending call of ``run`` that begins here.

    Returns:
        Its number, for ``Work.call_closed``.

    It is a reason to stop the running task, but for one behind a shield (what began
    there is finished) and one that was not born in the run (it serves others too).

    Args:
        run: Whose call it is.
        call: What the layer that follows calls knows it by.
    """
    loop = loop_here()
    if loop is None:
        task = None
    elif _TASKS is None:
        task = asyncio.current_task(loop)
    else:
        task = _TASKS.get(loop)
    born = POSITION.get()
    if born is not None:
        if born.hold is not None:
            born = seen(born)
        if (
            born is not None
            and born.shield is not None
            and not born.shield.deadline.expired()
        ):
            task = None
    tree = run.work.tree
    number = next(tree.numbers)
    tree.calls[number] = (run, task, born, call)
    return number
