"""``asyncio.Queue``: who takes jobs from one is a worker, and serves others too."""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING, Any, Final

from hangup.clients.patch import Patch
from hangup.core.consumers import takes_jobs
from hangup.core.current import POSITION

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine


def _get(original: Any, patch: Patch) -> Callable[..., Coroutine[Any, Any, Any]]:
    @functools.wraps(original)
    async def get(self: Any) -> Any:
        # Born outside of every run, it is no worker of one.
        if patch.active and POSITION.get() is not None:
            takes_jobs()
        return await original(self)

    return get


_PATCH: Final = Patch(asyncio.Queue, "get", _get)


def install() -> None:
    """Note who takes jobs. Idempotent."""
    _PATCH.apply()


def uninstall() -> None:
    """Take it back. Idempotent."""
    _PATCH.revert()
