"""The end of a server: its runs are abandoned, and the books are written.

What lives on when a server has ended does not come to its end any more. It is abandoned
then, cause ``shutdown``, has ``HANGUP_SETTLE`` seconds to stop, and what was spent is
exported. Only the last application of the process to end sees to it, and only for runs
of its event loop: that loop is about to stop, others may not be.
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

if TYPE_CHECKING:
    from hangup.core.run import Run

_EXPORT_SECONDS: Final = 5.0
DETAIL: Final = "the server is shutting down"

_logger = logging.getLogger("hangup.servers")


class _Applications:
    """How many applications of the process have started and not ended."""

    lock = threading.Lock()
    running = 0


def begun() -> None:
    """Note that an application has started."""
    with _Applications.lock:
        _Applications.running += 1


def ended() -> bool:
    """Note that an application has ended; return whether it was the last."""
    with _Applications.lock:
        _Applications.running -= 1
        return _Applications.running == 0


def shut_down(run: Run) -> bool:
    """Abandon a run because the process is going down."""
    return run.cancel(Cause.SHUTDOWN, DETAIL)


async def end() -> None:
    """Stop the runs of the running loop, and export. Never raises."""
    try:
        await stop_runs()
        settlement.release()
        instrumentor = HangupInstrumentor()
        # What observe lets go on, or what did not stop, is cut with this loop.
        instrumentor.give_up(asyncio.get_running_loop())
        await asyncio.to_thread(instrumentor.flush, _EXPORT_SECONDS)
    except Exception:  # the server's shutdown goes on
        _logger.exception("hangup could not end cleanly with the application")


async def stop_runs() -> None:
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
