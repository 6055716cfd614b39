"""Connections of httpcore that others wait for are opened to the end.

Where HTTP/2 may be spoken, many requests wait for one connection that the first of them
opens. If that is cut off, the others are left with a connection half made: they fail
with ``ProtocolError``, ``WriteError`` or "semaphore released too many times", or use
one that no pool knows any more. So it is opened in a task of its own. A request that is
cancelled meanwhile leaves at once; the task goes on until the connection stands, at
most five seconds, sends nothing, and leaves the connection to the pool.
"""

from __future__ import annotations

import asyncio
import functools
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from hangup.clients.finish import running_loop, soon
from hangup.clients.pools import Unfinished
from hangup.core.interrupt import retrieve
from hangup.otel.patch import Patch

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

PATIENCE: Final = 5.0
"""Seconds to open a connection in, once nobody waits for the answer."""


def patches_of(core_name: str) -> list[Patch]:
    """Return what is to be patched in ``httpcore`` or ``httpcore2``."""
    try:
        module = import_module(f"{core_name}._async.connection")
        return [Patch(module.AsyncHTTPConnection, "handle_async_request", _handle)]
    except (ImportError, AttributeError):  # another version: as it is
        return []


def _handle(original: Any, patch: Patch) -> Callable[..., Any]:
    @functools.wraps(original)
    async def handle_async_request(self: Any, request: Any) -> Any:
        if not patch.active or not _opens(self):
            return await original(self, request)
        return await _Opening(self, request).answer(original)

    return handle_async_request


def _opens(connection: Any) -> bool:
    """Whether it is one that others may share, and does not stand yet."""
    if not getattr(connection, "_http2", False):
        return False
    inner = getattr(connection, "_connection", None)
    if inner is not None and getattr(inner, "_sent_connection_init", True):
        return False
    return running_loop() is not None


class _Opening:
    """One request that may be the one to open the connection.

    Args:
        connection: The connection of httpcore.
        request: Its request. That it is about to be sent is learnt from the trace that
            httpcore gives of it.
    """

    def __init__(self, connection: Any, request: Any) -> None:
        self._connection = connection
        self._request = request
        self._trace = request.extensions.get("trace")
        self._given_up = False
        self._sending = False
        self._task: asyncio.Task[Any] | None = None
        request.extensions = {**request.extensions, "trace": self._hear}

    async def answer(self, original: Callable[..., Awaitable[Any]]) -> Any:
        """Return the answer; cancelled, give it up and let the opening end."""
        work = original(self._connection, self._request)
        task = self._task = asyncio.ensure_future(work)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            self._give_up(task)
            raise

    async def _hear(self, event: str, info: Any) -> None:
        if event.endswith(".send_request_headers.started"):
            if self._given_up:
                raise asyncio.CancelledError
            self._sending = True
        if self._trace is not None:
            await self._trace(event, info)

    def _give_up(self, task: asyncio.Task[Any]) -> None:
        self._given_up = True
        unfinished = Unfinished.add(self._connection)
        if self._sending:
            task.cancel()
        else:
            late = task.get_loop().call_later(PATIENCE, task.cancel)
            task.add_done_callback(lambda _: late.cancel())
        task.add_done_callback(functools.partial(_over, unfinished))


def _over(unfinished: Unfinished, task: asyncio.Task[Any]) -> None:
    retrieve(task)

    async def leave() -> None:
        try:
            if not task.cancelled() and task.exception() is None:
                await task.result().aclose()
        finally:
            unfinished.remove()

    soon(leave)
