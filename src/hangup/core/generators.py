"""What an async generator holds across a ``yield``.

A context variable that is set in a generator is seen by whoever consumes it, between
two values and, where the generator is dropped, for ever after. And the task that
entered the generator runs its consumer's code meanwhile. So what a generator has
entered is remembered with the frame it was entered in: while that frame does not run,
the consumer stands outside, and its task is nobody's to cancel.

A generator that :mod:`contextlib` made a context manager of is none in this sense: what
it yields to is the block that it is for.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import sys
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import TYPE_CHECKING, Any

from hangup.core.tree import current_task

if TYPE_CHECKING:
    from types import FrameType

_MANAGERS = "contextlib"
_OURS = "hangup.core."
_DEEPEST = 1_000
_UNSEEN = object()


class Hold:
    """A generator that has entered something, and on which task.

    Args:
        frame: Of the generator.
    """

    __slots__ = ("frame", "task")

    def __init__(self, frame: FrameType) -> None:
        self.frame: FrameType | None = frame
        self.task: asyncio.Task[Any] | None = current_task()

    @property
    def away(self) -> bool:
        """Whether the present code is its consumer's, or the hold is over.

        Only on the task that consumes it: what was started inside stays inside.
        """
        frame = self.frame
        return current_task() is self.task and (frame is None or frame.f_back is None)

    def over(self) -> None:
        """Note that it was left."""
        self.frame = None

    def lends(self, task: asyncio.Task[Any]) -> bool:
        """Whether ``task`` entered the generator, and waits now for something else.

        Read it while the task waits. False where what it waits in is not seen.
        """
        if task is not self.task or self.frame is None:
            return False
        link: Any = task.get_coro()
        for _ in range(_DEEPEST):
            if link is None:
                return True
            if getattr(link, "ag_frame", None) is self.frame:
                return False
            link = _below(link)
            if link is _UNSEEN:
                return False
        return False


def _below(link: Any) -> Any:
    """Return what a link in the chain of what a task waits for waits for itself."""
    if isinstance(link, CoroutineType):
        return link.cr_await
    if isinstance(link, AsyncGeneratorType):
        return link.ag_await
    if isinstance(link, GeneratorType):
        return link.gi_yieldfrom
    # The awaitables in between say nothing, but they refer to what they drive.
    kinds = (CoroutineType, AsyncGeneratorType, GeneratorType)
    drives = gc.get_referents(link)
    if any(isinstance(one, asyncio.Future) for one in drives):
        return None
    return next((one for one in drives if isinstance(one, kinds)), _UNSEEN)


def hold() -> Hold | None:
    """Return the hold of the async generator that enters something here, if one does.

    It is looked for above the frames of the core, and of ``contextlib``.
    """
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001  documented
    while frame is not None and _is_between(frame):
        frame = frame.f_back
    if frame is None or not frame.f_code.co_flags & inspect.CO_ASYNC_GENERATOR:
        return None
    return Hold(frame)


def _is_between(frame: FrameType) -> bool:
    name = str(frame.f_globals.get("__name__"))
    if name == _MANAGERS or name.startswith(_OURS):
        return True
    if not frame.f_code.co_flags & inspect.CO_ASYNC_GENERATOR:
        return False
    driver = frame.f_back
    return driver is not None and driver.f_globals.get("__name__") == _MANAGERS
