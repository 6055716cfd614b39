"""Tells MCP servers what became of the runs they helped, over the same session.

A notice is a request of its own, ``hangup/settle``: a notification would be dropped by
servers of the 2026 protocol over HTTP. It goes only to servers that have said they hold
a run, and is sent on the session's event loop. A session that is closed waits for it a
moment: the SDK's HTTP transport fails where an answer comes after that. Later ones are
given up, and the other side's hold expires.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import weakref
from collections import deque
from contextvars import Context
from typing import TYPE_CHECKING, Any, Final

from hangup.otel import mcpwire, settlement
from hangup.otel.notices import MAX_NOTICES, encode

if TYPE_CHECKING:
    from hangup.otel.notices import Notice

_SCHEME: Final = "mcp-session"
_CAPACITY: Final = 10_000
_TIMEOUT: Final = 2.0
_AT_CLOSE: Final = 1.0
_numbers = itertools.count(1)


class Link:
    """A session as a way to the process at its other end. :meth:`tell` from any thread.

    Attributes:
        origin: What the settlement knows it by.
        holds: Whether the process has said that it holds runs.
    """

    def __init__(self, session: Any) -> None:
        self.origin = f"{_SCHEME}:{next(_numbers)}"
        self.holds = False
        self._session = weakref.ref(session)
        self._loop = asyncio.get_running_loop()
        self._queue: deque[Notice] = deque(maxlen=_CAPACITY)
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    def tell(self, notice: Notice) -> None:
        """Queue a notice. Never blocks, never raises."""
        if self._closed:
            return
        self._queue.append(notice)
        with contextlib.suppress(RuntimeError):  # closed, and with it the session
            self._loop.call_soon_threadsafe(self._begin)

    async def close(self) -> None:
        """Send what is queued, for at most a moment, and nothing more after it."""
        if self._queue:
            self._begin()
        task = self._task
        if task is not None and not task.done():
            import anyio  # noqa: PLC0415  there where the SDK is

            with anyio.move_on_after(_AT_CLOSE, shield=True):
                await asyncio.wait([task])
            task.cancel()
        self._closed = True
        self._queue.clear()

    def _begin(self) -> None:
        if not self._closed and (self._task is None or self._task.done()):
            # An empty context: this is nobody's work, whoever closes the session.
            self._task = self._loop.create_task(
                self._send(), name="hangup-settle", context=Context()
            )

    async def _send(self) -> None:
        from mcp.types import Request  # noqa: PLC0415  it has been imported long ago
        from pydantic import TypeAdapter  # noqa: PLC0415  as above

        anything: TypeAdapter[Any] = TypeAdapter(Any)
        while self._queue and not self._closed:
            some = [self._queue.popleft() for _ in range(len(self._queue))]
            for start in range(0, len(some), MAX_NOTICES):
                session = self._session()
                if session is None:
                    return
                params = json.loads(encode(some[start : start + MAX_NOTICES]))
                request = Request[dict[str, Any], str](
                    method=mcpwire.SETTLE_METHOD, params=params
                )
                # Whatever it is: the hold at the other end expires.
                with contextlib.suppress(Exception):
                    await session.send_request(request, anything, _TIMEOUT)


_links: weakref.WeakKeyDictionary[Any, Link] = weakref.WeakKeyDictionary()
_by_origin: weakref.WeakValueDictionary[str, Link] = weakref.WeakValueDictionary()


def link_of(session: Any) -> Link:
    """Return the link of a session. Call it on the session's event loop."""
    link = _links.get(session)
    if link is None:
        link = _links[session] = Link(session)
        _by_origin[link.origin] = link
    return link


async def close(session: Any) -> None:
    """Close the link of a session, if it has one."""
    link = _links.pop(session, None)
    if link is not None:
        await link.close()


def _tell(origin: str, notice: Notice) -> None:
    link = _by_origin.get(origin)
    if link is not None:
        link.tell(notice)


def install() -> None:
    """Register with the settlement. Idempotent."""
    settlement.set_transport(_tell, _SCHEME)


def uninstall() -> None:
    """Unregister. Idempotent."""
    settlement.set_transport(None, _SCHEME)
