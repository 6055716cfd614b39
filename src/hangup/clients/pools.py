"""httpcore's pools, mended where a cancel has left them broken.

A request that is cancelled, or that runs out of time, at the very moment its connection
is assigned to it leaves that connection behind: neither idle nor closed, and nobody's.
It takes up a place in the pool for ever, and a pool that has lost all its places fails
every later request with ``PoolTimeout`` (case b1; encode/httpcore#658, #830, #1093). A
second cancel, in the clean-up of the first, can do the same to one that was in use, and
one in the middle of a TLS handshake leaves the socket open.

So when a request or its clean-up was cut short, its pool is looked through: what no
request holds, and no other could get, is taken out and closed. That is done at once and
without waiting; only the closing itself is left to a task. Whose cancel it was makes no
difference, nor whether there is a run.
"""

# ruff: noqa: SLF001  httpcore has no public way to see to this

from __future__ import annotations

import asyncio
import contextlib
import functools
import weakref
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

from hangup.clients.finish import soon
from hangup.core.guard import guarded
from hangup.otel.patch import Patch, patches

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


def mend(pool: Any) -> list[Any]:
    """Take out of a pool, sync or async, the connections that nobody can use any more.

    Every connection is closed, idle, or held by a request: one that is none of these
    was left behind. Waiting requests get the places. Thread-safe as the pool is.

    Returns:
        What is to be closed.
    """
    if not hasattr(pool, "_optional_thread_lock"):  # before httpcore 1.0.5
        return []
    with pool._optional_thread_lock:
        held = {id(request.connection) for request in pool._requests}
        lost = [
            connection
            for connection in pool._connections
            if id(connection) not in held
            and not connection.is_idle()
            and not connection.is_closed()
            and not Unfinished.keeps(connection, pool)
        ]
        if not lost:
            return []
        pool._connections = [one for one in pool._connections if one not in lost]
        closing: list[Any] = pool._assign_requests_to_connections()
    return [*lost, *closing]


class Unfinished:
    """A connection that is opened to its end, though its request is gone.

    Args:
        connection: A pool's, which must leave it alone meanwhile.
    """

    _of: ClassVar[weakref.WeakKeyDictionary[Any, Unfinished]]

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._requests = 0
        self._pool: Any = None

    @classmethod
    def add(cls, connection: Any) -> Unfinished:
        """Note that one more request of it is gone."""
        found = cls._of.get(connection)
        if found is None:
            found = cls._of[connection] = cls(weakref.ref(connection))
        found._requests += 1
        return found

    @classmethod
    def keeps(cls, connection: Any, pool: Any) -> bool:
        """Whether it is one of these; then its pool is seen to when it stands."""
        found = cls._of.get(connection)
        if found is not None:
            found._pool = pool
        return found is not None

    def remove(self) -> None:
        """Note that one of them is over: others may have it, or its place."""
        self._requests -= 1
        if self._requests:
            return
        connection, pool = self._connection(), self._pool
        if connection is not None:
            self._of.pop(connection, None)
        if pool is not None:
            mend_async(pool)
            close_soon(pool._assign_requests_to_connections())


Unfinished._of = weakref.WeakKeyDictionary()


def mend_async(pool: Any) -> None:
    """Mend an asynchronous pool; what is to be closed is closed soon."""
    close_soon(mend(pool))


def mend_sync(pool: Any) -> None:
    """Mend a synchronous pool."""
    for connection in mend(pool):
        with contextlib.suppress(Exception):  # it is gone either way
            connection.close()


def close_soon(connections: Iterable[Any]) -> None:
    """Close asynchronous connections without waiting; what fails is gone anyway."""
    for connection in connections:
        soon(connection.aclose)


def patches_of(core_name: str) -> list[Patch]:
    """Return what is to be patched in ``httpcore`` or ``httpcore2``."""
    try:
        pools = import_module(f"{core_name}._async.connection_pool")
        network = import_module(f"{core_name}._backends.anyio")
        return patches(
            (pools.PoolByteStream, "aclose", _response_close),
            (pools.AsyncConnectionPool, "_close_connections", _close_connections),
            (network.AnyIOStream, "start_tls", _start_tls),
        )
    except (ImportError, AttributeError):  # another version: as it is
        return []


def _response_close(original: Any, patch: Patch) -> Callable[..., Any]:
    @functools.wraps(original)
    async def aclose(self: Any) -> None:
        try:
            await original(self)
        except BaseException:
            if patch.active:
                guarded(_release, self)
            raise

    return aclose


def _release(response: Any) -> None:
    """Do for a response what its close, which was cut short, has not done."""
    pool, request = response._pool, response._pool_request
    if request in pool._requests:
        pool._requests.remove(request)
    mend_async(pool)
    # Others may wait for the place, also where nothing was lost.
    close_soon(pool._assign_requests_to_connections())


def _close_connections(original: Any, patch: Patch) -> Callable[..., Any]:
    @functools.wraps(original)
    async def close_connections(self: Any, closing: list[Any]) -> None:
        try:
            await original(self, closing)
        except BaseException:
            if patch.active:  # they are out of the pool: nobody else will
                close_soon(one for one in closing if not one.is_closed())
            raise

    return close_connections


def _start_tls(original: Any, patch: Patch) -> Callable[..., Any]:
    @functools.wraps(original)
    async def start_tls(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return await original(self, *args, **kwargs)
        except asyncio.CancelledError:  # of any other error it sees to itself
            if patch.active:
                soon(self.aclose)
            raise

    return start_tls
