"""One request of an MCP client that is sent for a run."""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from hangup.config import Mode
from hangup.core.admission import admit, stop_here
from hangup.core.cause import Cause
from hangup.core.current import position
from hangup.core.guard import guarded
from hangup.core.irreversible import see_through
from hangup.core.tree import current_task
from hangup.otel import calls, mcpwire, settlement
from hangup.otel.call import least_time

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from hangup.clients._mcp_settle import Link
    from hangup.core.run import Run

    Send = Callable[[float | None], Awaitable[Any]]

# The deadline's own stop comes first, with the better error.
_MARGIN: Final = 0.1
# The server counts what is left from when the request has come to it, in whole
# milliseconds: it may say that the time is up a moment before it is.
_ABOUT_NOW: Final = 0.5


def refusal_of(run: Run, method: str) -> BaseException | None:
    """Return what to raise instead of sending a request, None to send it.

    The span of a call is asked for when it starts. Here it is asked for again, where it
    is sent: there may be no span of ours around it.
    """
    if method != mcpwire.TOOLS_CALL:
        return None
    if run.work.tree.calling(current_task()):
        return stop_here(run)  # counted when the call began
    least = least_time(run.settings.needs, calls.TOOL, None)
    return admit(run, calls.TOOL, least)


class ToolCall:
    """A request, of whatever method, that is sent for a run. Used once.

    Args:
        run: The run.
        link: To the process that serves it.
        protected: It is never refused, and finished once it has begun.
    """

    def __init__(self, run: Run, link: Link, *, protected: bool) -> None:
        self._run = run
        self._link = link
        self._protected = protected

    async def through(self, send: Send, limit: float | None) -> Any:
        """Send it, and return the result.

        Args:
            send: Sends it with a timeout in seconds, None for none.
            limit: The one it was given.

        Raises:
            Stop: The run must not go on: it was not sent, or ended in an error.
        """
        if self._protected and self._run.mode.refuses:
            import anyio  # noqa: PLC0415  there where the SDK is

            self._run.begin_spending()
            # Or a cancelled group of anyio would repeat itself at every turn.
            with anyio.CancelScope(shield=True):
                return await see_through(self._run, partial(self._sent, send, limit))
        return await self._sent(send, limit)

    async def _sent(self, send: Send, limit: float | None) -> Any:
        try:
            result = await send(self._clamped(limit))
        except BaseException as error:
            guarded(self._failed)
            if isinstance(error, Exception):
                await self._until_due(error)
                stop = guarded(partial(stop_here, self._run, under_way=True))
                if stop is not None:
                    raise stop from error
            raise
        guarded(self._arrived, result)
        return result

    def _clamped(self, timeout: float | None) -> float | None:
        """Return a timeout that does not outlast the run."""
        run, here = self._run, position()
        if run.mode is not Mode.ENFORCE or not run.deadline.is_set or self._protected:
            return timeout
        if here is not None and here.shield is not None:
            return timeout
        left = max(0.0, run.remaining()) + _MARGIN
        if here is not None and here.drain is not None:
            left += here.drain.budget  # it may go on for so long after the deadline
        return left if timeout is None else min(timeout, left)

    async def _until_due(self, error: Exception) -> None:
        """Wait for our own deadline where the server has come to it a moment before.

        Its error would go to the model as that of a tool, and the run spend the moment
        it has left on another try (case e8).
        """
        data = getattr(getattr(error, "error", None), "data", None)
        said = mcpwire.cause_in(data, self._run.id)
        if said is not Cause.DEADLINE or self._run.mode is not Mode.ENFORCE:
            return
        left = self._run.deadline.remaining()
        if 0 < left <= _ABOUT_NOW:
            # Its own stop is the cancel that comes; without one the next check says so.
            with contextlib.suppress(TimeoutError):
                await asyncio.sleep(left)

    def _arrived(self, result: Any) -> None:
        """Remember a server that holds the run, to tell it what becomes of that."""
        meta = getattr(result, "meta", None) or {}
        if mcpwire.SETTLE_MARK in meta:
            self._link.holds = True
            settlement.remember(self._run, self._link.origin)

    def _failed(self) -> None:
        # It may have answered in full just before its caller was stopped.
        if self._link.holds:
            settlement.remember(self._run, self._link.origin)
