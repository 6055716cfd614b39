"""Django: stopped the way it stops by itself, or it cannot clean up.

Its ASGI handler runs a view in a task of its own, beside one that waits to hear of a
disconnect; when that comes it cancels the view, waits for it, and tells the rest of
Django that the request is over (which is when database connections are closed). The
handler itself does not expect to be cancelled: it would leave both tasks behind.

So while it listens it is told of a disconnect instead, whatever the cause was; by then
the caller has had our answer, and after a response that is what ``receive`` returns.
Everything else that is stopped in a Django process is stopped as anywhere.
"""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

from hangup.core.cause import Cause

if TYPE_CHECKING:
    from collections.abc import Callable

    from hangup.core.run import Run
    from hangup.servers._asgi_receive import Message, Reader, Receive

_HANDLER = "django.core.handlers.asgi"
_LISTENER = "listen_for_disconnect"


def receiving(
    reader: Reader, run: Run, on_loop: Callable[[Callable[[], None]], None]
) -> Receive:
    """Return the ``receive`` of an application that Django may be in.

    Args:
        reader: Whose ``receive`` it is anywhere else.
        run: The run of the connection, which has been entered.
        on_loop: Calls something on the connection's loop, from any thread.
    """
    if _HANDLER not in sys.modules:
        return reader.receive

    async def receive() -> Message:
        task = asyncio.current_task()
        if task is None or not _listens(task):
            return await reader.receive()
        return await _Listening(task, reader, run, on_loop).disconnect()

    return receive


def _listens(task: asyncio.Task[None]) -> bool:
    code = getattr(task.get_coro(), "cr_code", None)
    handler = sys.modules.get(_HANDLER)
    listener = getattr(getattr(handler, "ASGIHandler", None), _LISTENER, None)
    return code is not None and code is getattr(listener, "__code__", None)


class _Listening:
    """One wait of Django's for the disconnect."""

    def __init__(
        self,
        task: asyncio.Task[None],
        reader: Reader,
        run: Run,
        on_loop: Callable[[Callable[[], None]], None],
    ) -> None:
        self._task = task
        self._reader = reader
        self._run = run
        self._on_loop = on_loop
        self._stopped = False
        self._told = False

    async def disconnect(self) -> Message:
        """Return when the client left, or the run was stopped."""
        tree, serving = self._run.work.tree, self._run.work.task
        forget = self._run.on_abandon(self._stop)
        held = None if self._stopped else tree.shield(serving)
        try:
            return await self._reader.receive()
        except asyncio.CancelledError:
            # Django cancels it too, when there is a response.
            if not self._told or self._task.cancelling() > 1:
                raise
            self._task.uncancel()
            return {"type": "http.disconnect"}
        finally:
            forget()
            if not self._stopped:
                tree.unshield(held)
            # Else Django is ending by itself: a cancel would cut that short.

    def _stop(self, run: Run) -> None:
        if run.work.acts and run.token.abandonment is not None:
            if run.token.abandonment.cause is Cause.FAILED:
                return
            self._stopped = True
            self._on_loop(self._tell)

    def _tell(self) -> None:
        if not self._reader.gone:  # else it hears of that
            self._told = self._task.cancel()
