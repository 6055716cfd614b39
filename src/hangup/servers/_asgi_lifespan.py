"""The end of the process, as far as an ASGI server tells its application of it.

Servers (uvicorn, hypercorn, granian) stop taking requests at SIGTERM, let those they
have come to their end, and only then send ``lifespan.shutdown``. So the application
is not told that its process is going down while requests are being served, and needs
not be: they are drained. Signs of it that come earlier are read elsewhere: the cancel
that uvicorn gives to requests which outlast ``timeout_graceful_shutdown``, and
hypercorn to those which outlast ``graceful_timeout``
(:mod:`hangup.servers._asgi_servers`), the close code 1012 of uvicorn's WebSockets, and
where it was asked for the signal itself (:mod:`hangup.servers._asgi_signals`).

What lives on when the application has said ``lifespan.shutdown.complete`` (background
work, requests of a server that does not drain) does not come to its end any more. It is
abandoned then, cause ``shutdown``, has ``HANGUP_SETTLE`` seconds to stop, and what was
spent is exported. That must happen here: uvicorn ends by the signal it got, and then no
``atexit`` handler runs.

What nobody can do: a process that is killed before its lifespan ends (granian's
``--workers-kill-timeout``, an orchestrator's grace period) exports nothing any more.
Let ``shutdown_after`` be less than that time.

Only the last application of the process to end does so, and only for runs of its event
loop: that loop is about to stop, others may not be.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from typing import TYPE_CHECKING, Final, Self

from hangup import config
from hangup.core import registry
from hangup.core.cause import Cause
from hangup.core.current import position
from hangup.core.registry import RunObserver
from hangup.otel import settlement
from hangup.otel.instrumentor import HangupInstrumentor
from hangup.servers import _asgi_servers, _asgi_signals
from hangup.servers._asgi_signals import Watch

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from hangup.core.run import Run
    from hangup.servers._asgi_receive import Message, Receive, Scope

    Send = Callable[[Message], Awaitable[None]]

_EXPORT_SECONDS: Final = 5.0
_DETAIL: Final = "the server is shutting down"
_GRACEFUL: Final = "graceful shutdown"
_SERVICE_RESTART: Final = 1012  # RFC 6455, IANA registry of close codes

_logger = logging.getLogger("hangup.servers.asgi")


class _Applications:
    """How many applications of the process have started and not ended.

    And whether their server drops WebSockets at the signal to end.
    """

    lock = threading.Lock()
    running = 0
    drops_sockets = False


async def serve(
    app: Callable[[Scope, Receive, Send], Awaitable[None]],
    scope: Scope,
    receive: Receive,
    send: Send,
    shutdown_after: float | None = None,
) -> None:
    """Pass the lifespan protocol through, and see to what lives on after its end.

    Args:
        app: What has a lifespan.
        scope: Of it.
        receive: The server's.
        send: The server's.
        shutdown_after: Seconds that runs have from the signal to end on; None is all
            the time that the server gives them.
    """
    running = False
    watch: Watch | None = None
    _Applications.drops_sockets = _asgi_servers.drops_sockets(send)
    if shutdown_after is not None or _Applications.drops_sockets:
        watch = Watch(shutdown_after, _DETAIL)

    async def tapped(message: Message) -> None:
        nonlocal running
        kind = message["type"]
        if kind == "lifespan.startup.complete" and not running:
            running = True
            _count(1)
            if watch is not None:
                watch.start()
        elif running and kind.startswith("lifespan.shutdown."):
            running = False
            if _count(-1) == 0:
                await _end()
        await send(message)

    try:
        await app(scope, receive, tapped)
    finally:
        if watch is not None:
            watch.stop()
        if running:
            _count(-1)


def cut_by_shutdown(error: asyncio.CancelledError) -> bool:
    """Whether uvicorn cancelled a request that outlasted its graceful shutdown."""
    return any(isinstance(arg, str) and _GRACEFUL in arg for arg in error.args)


def closed_by_shutdown(message: Message | None) -> bool:
    """Whether a WebSocket was closed because its server goes down."""
    code = None if message is None else message.get("code")
    return code == _SERVICE_RESTART or (
        _asgi_signals.told() and _Applications.drops_sockets
    )


def shut_down(run: Run) -> bool:
    """Abandon a run because the process is going down."""
    return run.cancel(Cause.SHUTDOWN, _DETAIL)


def _count(change: int) -> int:
    with _Applications.lock:
        _Applications.running += change
        return _Applications.running


async def _end() -> None:
    try:
        await _stop_runs()
        settlement.release()
        await asyncio.to_thread(HangupInstrumentor().flush, _EXPORT_SECONDS)
    except Exception:  # the server's shutdown goes on
        _logger.exception("hangup could not end cleanly with the application")


async def _stop_runs() -> None:
    """Abandon what lives on this loop, and wait until it has stopped."""
    loop = asyncio.get_running_loop()
    here = position()
    around = None if here is None or here.run is None else here.run.root
    with _Farewell(loop) as farewell:
        for run in registry.live_runs():
            if run.parent is None and run is not around and run.work.loop is loop:
                farewell.stop(run)
        await farewell.stopped()


class _Farewell(RunObserver):
    """Abandons runs and knows when they have stopped; a context manager."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._stopping: set[Run] = set()
        self._done = asyncio.Event()

    def __enter__(self) -> Self:
        registry.add_observer(self)
        return self

    def __exit__(self, *_error: object) -> None:
        registry.remove_observer(self)

    def stop(self, run: Run) -> None:
        self._stopping.add(run)
        if not (shut_down(run) and run.work.acts):
            self._stopping.discard(run)  # nothing of it is stopped: nothing to wait for

    async def stopped(self) -> None:
        if not self._stopping:
            return
        with contextlib.suppress(TimeoutError):
            # By then the runs have reported what did not stop.
            async with asyncio.timeout(config.current().settle + 1.0):
                await self._done.wait()

    def settled(self, run: Run, unsettled: int) -> None:  # noqa: ARG002  an observer
        self._loop.call_soon_threadsafe(self._note, run)

    def _note(self, run: Run) -> None:
        self._stopping.discard(run)
        if not self._stopping:
            self._done.set()
