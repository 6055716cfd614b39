"""A request served on an event loop: answered at once, wherever it was stopped."""

from __future__ import annotations

import asyncio
import logging
from contextvars import copy_context
from typing import TYPE_CHECKING

from hangup.core.cause import Cause
from hangup.servers import _common_exchange
from hangup.servers._common_exchange import cause_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from hangup.core.run import Run
    from hangup.servers._common_terms import Opening

_logger = logging.getLogger("hangup.servers")


class LoopExchange:
    """What adapters of servers that run on asyncio have in common.

    Lives on the request's event loop; only what the run calls back may come from
    another thread, and crosses over.

    Args:
        opening: How to serve it.
    """

    # Class-level defaults: most requests never get further than these.
    _last = False  # the last of it is being, or was, handed to the server
    _answer: asyncio.Task[None] | None = None
    _run: Run | None = None

    def __init__(self, opening: Opening) -> None:
        self._opening = opening
        self._loop = asyncio.get_running_loop()
        # Taken before the run is entered: what we read and answer is no work of it.
        self._context = copy_context()

    async def say(self, cause: Cause) -> None:
        """Tell the caller why there is no answer, if that can still be said."""
        raise NotImplementedError

    def barred(self, run: Run) -> bool:
        """Whether the caller has had our answer, or is about to, instead.

        A failed run is not barred: the application is busy telling its caller so.
        """
        return _common_exchange.barred(run) or (
            self._answer is not None and not run.latent
        )

    # What the run calls back, from any thread

    def _abandoned(self, run: Run) -> None:
        abandonment = run.token.abandonment
        silent = (None, Cause.FAILED, Cause.DISCONNECT)
        if run.work.acts and (abandonment and abandonment.cause) not in silent:
            self._on_loop(self.begin_answer)

    def _on_loop(self, callback: Callable[[], None]) -> None:
        try:
            here = asyncio.get_running_loop()
        except RuntimeError:
            here = None
        if here is self._loop:
            callback()
            return
        try:
            self._loop.call_soon_threadsafe(callback, context=self._context)
        except RuntimeError:  # the loop is closed, and with it the connection
            _logger.debug("the connection's event loop is closed")

    # On the loop

    def begin_answer(self) -> None:
        """Start to tell the caller; the application's work stops in its own time."""
        run = self._run
        if run is None or self._last or self._answer is not None:
            return
        cause = cause_of(run, None)
        self._answer = self._loop.create_task(
            self._answered(cause),
            name="hangup-answer",
            # A copy: this may run inside a task of ours, which has entered its own.
            context=self._context.copy(),
        )

    async def _answered(self, cause: Cause) -> None:
        try:
            await self.say(cause)
        except Exception:  # the caller cannot be reached: there is nobody to tell
            _logger.debug("the answer to an abandoned run was not sent", exc_info=True)
