"""One request over MCP and its run: who is there, and what is answered.

Whoever serves it (the SDK) cancels its handler when the client cancels it, when the
connection ends, and when the server goes down. Which of these it was is found out here,
and noted at once: a handler may be long in noticing it, or never does.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final

import anyio
from mcp.shared.exceptions import MCPError

from hangup.core.admission import admit
from hangup.core.cause import Cause
from hangup.core.current import Position, Shield, enter
from hangup.core.deadline import Deadline
from hangup.core.guard import guarded
from hangup.otel import calls, mcpwire
from hangup.otel.call import least_time
from hangup.servers._common_exchange import barred, cause_of, connect, ends_here

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from hangup.core.run import Run
    from hangup.servers._mcp_terms import Opening

    Handle = Callable[[], Awaitable[dict[str, Any]]]

_logger = logging.getLogger("hangup.servers.mcp")

# JSON-RPC's "Internal error", and the SDK's for a handler that raised: a failure, where
# any other error is an answer.
_FAILURES: Final = (-32603, 0)


class Exchange:
    """A request and its answer. Used once, on the task that serves the request.

    Args:
        context: The SDK's dispatch context of the request.
        opening: How to serve it.
    """

    def __init__(self, context: Any, opening: Opening) -> None:
        self._context = context
        self._opening = opening
        self._run: Run | None = None
        self._over = False
        self._result: dict[str, Any] | None = None
        self._error: BaseException | None = None

    async def serve(self, handle: Handle) -> dict[str, Any]:
        """Return the result of ``handle`` for the client.

        Raises:
            MCPError: There is none, for the run was abandoned; what ``handle`` raised.
            CancelledError: The SDK, or somebody else, has cancelled the request.
        """
        try:
            async with anyio.create_task_group() as watching:
                watching.start_soon(self._watch)
                await self._serve(handle)
                self._over = True
                watching.cancel_scope.cancel()
        except BaseException:
            # All that comes out of the group itself is a cancel from around it.
            if self._error is None or isinstance(self._error, MCPError):
                raise
        if self._error is not None:
            raise self._error
        return self._result or {}

    async def _serve(self, handle: Handle) -> None:
        # A root, wherever the session was opened: the token says whose it is.
        leave = enter(Position(None))
        try:
            with self._opening.run as run:
                self._run = run
                connect(run, self._opening.inbound)
                await self._answer(run, handle)
        except BaseException as error:  # noqa: BLE001  raised by serve
            self._error = self._told(error)
        finally:
            leave()
        self._close()

    def _close(self) -> None:
        """See to the answer of a run that was left."""
        run = self._run
        if run is None or self._error is not None:
            return
        if barred(run) and not self._opening.protected:
            self._error = self._told(run.error())
        elif run.joined and not run.latent:
            self._result = _marked(self._result)

    async def _answer(self, run: Run, handle: Handle) -> None:
        opening = self._opening
        if opening.protected:
            run.begin_spending()
        elif opening.tool is not None:
            least = least_time(run.settings.needs, calls.TOOL, None)
            refusal = admit(run, calls.TOOL, least)
            if refusal is not None:
                raise refusal
        try:
            if opening.protected and run.mode.refuses:
                self._result = await _finish(run, handle)
            else:
                self._result = await handle()
        except asyncio.CancelledError:
            task = asyncio.current_task()
            # Not where the handler only lets out what became of a task of its own.
            if task is not None and task.cancelling():
                self._cut()
            raise
        except MCPError as error:
            if error.error.code not in _FAILURES:
                run.deliver()
            raise
        # In enforce mode the rule says whether that was in time.
        run.deliver()

    def _told(self, error: BaseException) -> BaseException:
        """Return what the SDK gets to see: a stop would end the whole server."""
        run = self._run
        if run is None or not ends_here(error):
            return error
        cause = cause_of(run, error)
        message = f"the run {run.name!r} was stopped: {cause.value}"
        data = mcpwire.data_of(run.id, cause)
        told = MCPError(code=mcpwire.code_of(cause), message=message, data=data)
        told.__cause__ = error
        return told

    # The client

    async def _watch(self) -> None:
        """See the client go, also where the handler does not hear of it."""
        try:
            gone = _hang_up_of(self._context)
            if gone is None:
                await self._context.cancel_requested.wait()
            else:
                await gone()
        except asyncio.CancelledError:
            if not self._over:
                self._cut()
            raise
        except Exception:  # what is not there cannot be watched
            _logger.debug("the client of a request cannot be watched", exc_info=True)
            return
        self._cut()

    def _cut(self) -> None:
        run = self._run
        if run is not None and not run.work.left:
            guarded(self._name_cause, run)

    def _name_cause(self, run: Run) -> None:
        if self._context.cancel_requested.is_set():
            run.cancel(Cause.DISCONNECT, "the client cancelled the request")
        elif _goes_down(self._context):
            run.cancel(Cause.SHUTDOWN, "the server is shutting down")
        else:
            run.cancel(Cause.DISCONNECT, "the connection was closed")


async def _finish(run: Run, handle: Handle) -> dict[str, Any]:
    """Let a step that cannot be undone come to its end, whatever comes meanwhile."""
    shield = Shield("irreversible", Deadline())
    leave = enter(Position(run, shield))
    held = run.work.tree.shield()
    try:
        with anyio.CancelScope(shield=True):
            result = await handle()
        return result  # noqa: RET504  a scope may swallow, mypy says
    finally:
        shield.deadline = Deadline.after(0, shield.deadline.clock)
        leave()
        run.work.tree.unshield(held)


def _marked(result: dict[str, Any] | None) -> dict[str, Any]:
    """Return a result that says where to tell what becomes of it."""
    result = result or {}
    meta = result.get(mcpwire.META)
    if meta is not None and not isinstance(meta, dict):
        return result
    return {**result, mcpwire.META: {**(meta or {}), mcpwire.SETTLE_MARK: "1"}}


def _goes_down(context: Any) -> bool:
    """Whether a cancel that is not the client's is that of the server.

    A dispatcher that has come to the end of what the client sends has closed itself
    before it cancels what it serves.
    """
    dispatcher = getattr(getattr(context, "_inner", context), "_dispatcher", None)
    return dispatcher is not None and not getattr(dispatcher, "_closed", True)


def _hang_up_of(context: Any) -> Callable[[], Awaitable[None]] | None:
    """Return what waits for the client of an HTTP request that nobody watches.

    With ``json_response`` the SDK serves a request of the 2026 protocol on its own
    task, and hears of its client when it answers.
    """
    request = getattr(
        getattr(context, "message_metadata", None), "request_context", None
    )
    receive = getattr(request, "receive", None)
    if receive is None or getattr(context, "sink", "") is not None:
        return None

    async def gone() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    return gone
