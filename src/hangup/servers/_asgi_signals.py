"""SIGTERM and SIGINT: how long requests may go on after one, where that was given.

Servers drain: they let requests come to their end, and tell nobody that they do. Where
that is bounded by a kill (an orchestrator's grace period, granian's
``--workers-kill-timeout``), what outlasts it is lost, and so is what it spent. With
``shutdown_after`` runs are stopped before, their callers told to try again, and the
server ends as it would have.

The handlers of the server stay in charge. Ours is put before them, notes the time, and
calls them. A signal that has none is left alone. Without ``shutdown_after`` there is
none of ours, but under granian: it drops every WebSocket at the signal, and tells them
what it tells of a client that left, so there the time alone is noted.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any

from hangup.core import registry

if TYPE_CHECKING:
    from types import FrameType

_SIGNALS = (signal.SIGTERM, signal.SIGINT)

_logger = logging.getLogger("hangup.servers.asgi")


class _Process:
    told = False
    over = False


def told() -> bool:
    """Whether the process was told to end, as far as anybody listens for that."""
    return _Process.told


def ending() -> bool:
    """Whether the process is known to end, by whatever can be seen of it.

    By what we have seen, or by what sse-starlette sees, which cuts its streams at the
    signal: uvicorn's handler belongs to a server that says so, or its own copy of that.
    """
    if _Process.told:
        return True
    server = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
    status = getattr(sys.modules.get("sse_starlette.sse"), "AppStatus", None)
    return any(getattr(one, "should_exit", False) is True for one in (server, status))


def over() -> bool:
    """Whether the time that runs had after the signal is up: none begins any more."""
    return _Process.over


class Watch:
    """Stops every run of the process some time after it was told to end.

    Use it on the event loop that the server runs; :meth:`start` and :meth:`stop` once
    each.

    Args:
        seconds: From the first signal on; None only notes that it came.
        detail: What the runs are told.
    """

    def __init__(self, seconds: float | None, detail: str) -> None:
        self._seconds = seconds
        self._detail = detail
        self._loop = asyncio.get_running_loop()
        self._handlers: dict[signal.Signals, tuple[Any, Any]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = False

    def start(self) -> None:
        """Begin to listen; warns where that cannot be done."""
        _Process.told = _Process.over = False
        if threading.current_thread() is threading.main_thread():
            for which in _SIGNALS:
                before = signal.getsignal(which)
                if callable(before):
                    ours = self._handler(before)
                    signal.signal(which, ours)
                    self._handlers[which] = (ours, before)
        if not self._handlers and self._seconds is not None:
            _logger.warning(
                "shutdown_after has no effect: the server handles no signals on the "
                "thread of its event loop"
            )

    def stop(self) -> None:
        """Put the handlers back, unless somebody has replaced them since."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        for which, (ours, before) in self._handlers.items():
            if signal.getsignal(which) is ours:
                signal.signal(which, before)

    def _handler(self, before: Any) -> Any:
        def handle(number: int, frame: FrameType | None) -> None:
            if not self._stopped and not self._loop.is_closed():
                _Process.told = True
                self._loop.call_soon_threadsafe(self._told)
            before(number, frame)

        # sse-starlette looks for the server that a handler belongs to, to learn of the
        # end of it.
        with contextlib.suppress(AttributeError):
            handle.__self__ = before.__self__  # type: ignore[attr-defined]
        return handle

    def _told(self) -> None:
        if self._seconds is None:
            return
        if self._timer is None and not self._stopped:
            self._timer = self._loop.call_later(self._seconds, self._up)

    def _up(self) -> None:
        _Process.over = True
        registry.shutdown(self._detail)
