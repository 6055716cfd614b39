"""``asyncio.Queue``: who takes jobs from one is a worker, and serves others too.

At work for the run that it was born in it is stopped with an ordinary error (see
:mod:`hangup.core.consumers`). Out of a run that was stopped and left it goes as soon as
it takes its next job: that is not refused.
"""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING, Any, Final

from hangup.core.consumers import takes_jobs
from hangup.core.current import POSITION, Position, enter
from hangup.core.guard import guarded
from hangup.otel.patch import Patch

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine


def _get(original: Any, patch: Patch) -> Callable[..., Coroutine[Any, Any, Any]]:
    @functools.wraps(original)
    async def get(self: Any) -> Any:
        here = POSITION.get() if patch.active else None
        if here is None:  # born outside of every run, it is no worker of one
            return await original(self)
        takes_jobs()
        item = await original(self)
        guarded(_move_on, here)
        return item

    return get


def _move_on(here: Position) -> None:
    """Leave the runs that are over, for good: nobody's scope is open around here."""
    run = now = here.held
    while now is not None and now.closed_at is not None:
        now = now.parent
    if now is not run and POSITION.get() is here:
        enter(Position(now, here.shield, here.drain))


_PATCH: Final = Patch(asyncio.Queue, "get", _get)


def install() -> None:
    """Note who takes jobs. Idempotent."""
    _PATCH.apply()


def uninstall() -> None:
    """Take it back. Idempotent."""
    _PATCH.revert()
