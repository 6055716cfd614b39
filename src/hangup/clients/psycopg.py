"""psycopg's asynchronous pool gets back what was borrowed, whoever is cancelled.

A task that is cancelled while it gives its connection back (``putconn`` waits for the
pool's lock) takes the connection with it: the pool counts it as lent for ever, and is
empty after ``max_size`` of these (psycopg_pool 3.3). So it is given back in a task of
its own, which the cancel does not reach and nobody waits for.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final

from hangup.clients.finish import to_the_end
from hangup.otel.mending import Mending

if TYPE_CHECKING:
    from collections.abc import Callable

    from hangup.otel.patch import Patch

_LIBRARY: Final = "psycopg_pool"


def _putconn(original: Any, patch: Patch) -> Callable[..., Any]:
    @functools.wraps(original)
    async def putconn(self: Any, conn: Any) -> None:
        if patch.active:
            await to_the_end(original(self, conn))
        else:
            await original(self, conn)

    return putconn


_mending: Final = Mending((_LIBRARY, "AsyncConnectionPool", "putconn", _putconn))


def install() -> None:
    """Mend the pool, now or when it is imported. Idempotent."""
    _mending.install()


def uninstall() -> None:
    """Take it back. Idempotent."""
    _mending.uninstall()
