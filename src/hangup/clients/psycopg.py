"""psycopg's asynchronous pool gets back what was borrowed, whoever is cancelled.

A task that is cancelled while it gives its connection back (``putconn`` waits for the
pool's lock) takes the connection with it: the pool counts it as lent for ever, and is
empty after ``max_size`` of these (psycopg_pool 3.3). So it is given back in a task of
its own, which the cancel does not reach and nobody waits for.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final

from wrapt import register_post_import_hook

from hangup.clients.finish import to_the_end
from hangup.clients.patch import Patch
from hangup.core.guard import guarded

if TYPE_CHECKING:
    from collections.abc import Callable

_LIBRARY: Final = "psycopg_pool"


def _putconn(original: Any, patch: Patch) -> Callable[..., Any]:
    @functools.wraps(original)
    async def putconn(self: Any, conn: Any) -> None:
        if patch.active:
            await to_the_end(original(self, conn))
        else:
            await original(self, conn)

    return putconn


class _State:
    active = False
    hooked = False
    patch: Patch | None = None


def install() -> None:
    """Mend the pool, now or when it is imported. Idempotent."""
    _State.active = True
    if not _State.hooked:
        _State.hooked = True
        register_post_import_hook(_imported, _LIBRARY)
    if _State.patch is not None:
        _State.patch.apply()


def uninstall() -> None:
    """Take it back. Idempotent."""
    _State.active = False
    if _State.patch is not None:
        _State.patch.revert()


def _imported(module: object) -> None:
    guarded(_mend, module)


def _mend(module: object) -> None:
    pool = getattr(module, "AsyncConnectionPool", None)
    if pool is None or not hasattr(pool, "putconn"):
        return
    _State.patch = Patch(pool, "putconn", _putconn)
    if _State.active:
        _State.patch.apply()
