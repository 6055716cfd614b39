"""Starlette: a synchronous generator that is streamed ends with its response.

Starlette reads one on worker threads, a piece at a time. Where the stop comes between
two pieces, nobody reads on, and a cycle in anyio keeps the generator until a garbage
collection finds it: its ``finally`` runs late, or never (case a6). Here it is closed,
on a thread, as soon as the response has ended by the stop.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import inspect
from typing import TYPE_CHECKING, Any, Final

from hangup.core.admission import owner_of_cause
from hangup.core.current import current_run
from hangup.core.guard import guarded
from hangup.otel.mending import Mending

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from hangup.otel.patch import Patch

_LIBRARY: Final = "starlette.responses"


def _stream(original: Any, patch: Patch) -> Callable[..., Coroutine[Any, Any, None]]:
    @functools.wraps(original)
    async def stream_response(self: Any, send: Any) -> None:
        reading = guarded(_read_by, self.body_iterator) if patch.active else None
        if reading is None:
            await original(self, send)
            return
        try:
            await original(self, send)
        except BaseException:
            guarded(_close_soon, reading)
            raise

    return stream_response


def _read_by(pieces: Any) -> Any:
    """Return the generator that Starlette's ``iterate_in_threadpool`` is to read.

    None outside any run, and for anything else.
    """
    if current_run() is None:
        return None
    frame = getattr(pieces, "ag_frame", None)
    if frame is None or frame.f_code.co_name != "iterate_in_threadpool":
        return None
    found = frame.f_locals.get("iterator")
    return found if inspect.isgenerator(found) else None


def _close_soon(generator: Any) -> None:
    """Close what a response was reading, if that was stopped by us. Never waits."""
    run = current_run()
    if run is not None and owner_of_cause(run).work.acts:
        context = contextvars.copy_context()
        asyncio.get_running_loop().run_in_executor(None, context.run, _close, generator)


def _close(generator: Any) -> None:
    # ValueError: it runs, on a thread that gets the stop itself. Anything else is a
    # fault of a ``finally``, and there is nobody left to hear of it.
    with contextlib.suppress(Exception):
        generator.close()


_mending: Final = Mending((_LIBRARY, "StreamingResponse", "stream_response", _stream))


def install() -> None:
    """See to Starlette's responses, now or when it is imported. Idempotent."""
    _mending.install()


def uninstall() -> None:
    """Take it back. Idempotent."""
    _mending.uninstall()
