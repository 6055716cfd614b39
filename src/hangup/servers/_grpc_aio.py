"""One RPC of a ``grpc.aio`` server and its run.

The handler runs in a task of its own. gRPC cancels the task that serves a call when its
client is gone; so that cancel is told from any other that the handler hears, such as
that of its own timeout, and what it means is decided before the handler hears of it.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import grpc  # type: ignore[import-untyped]

from hangup.servers._common_exchange import cause_of, ends_here, goes_on
from hangup.servers._common_loop import LoopExchange
from hangup.servers._common_respond import message
from hangup.servers._grpc_call import CODE, Exchange, cause_field

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable

    from hangup.core.cause import Cause
    from hangup.servers._common_terms import Opening


class AioExchange(Exchange, LoopExchange):
    """Serves one RPC. Used on its event loop.

    Args:
        opening: How to serve it.
        context: gRPC's.
        method: ``/package.Service/Method``.
    """

    def __init__(self, opening: Opening, context: Any, method: str) -> None:
        LoopExchange.__init__(self, opening)
        Exchange.__init__(self, opening, context, method)
        self._stop: BaseException | None = None
        self._cut = False  # gRPC has cancelled the call
        self._item: Any = None
        self._arrived = asyncio.Event()
        self._taken = asyncio.Event()

    async def serve(self, behavior: Callable[..., Awaitable[Any]], request: Any) -> Any:
        """Call a handler that returns its response, or that writes it; return that.

        Raises:
            BaseException: What the handler raised, but for a stop.
        """
        task = self._begun(lambda: behavior(request, self._call))
        await self._over(task)
        return await self._outcome(task)

    async def stream(
        self, behavior: Callable[..., AsyncGenerator[Any, None]], request: Any
    ) -> AsyncIterator[Any]:
        """Yield what a handler yields, which goes on when gRPC has sent it.

        Raises:
            BaseException: What the handler raised, but for a stop.
        """
        task = self._begun(lambda: self._pump(behavior(request, self._call)))
        task.add_done_callback(lambda _: self._arrived.set())
        try:
            while await self._next(task):
                item, self._item = self._item, None
                if self._run is None or not self.barred(self._run):
                    yield item
                self._taken.set()
        except GeneratorExit:  # cut off while the last item was sent
            self._cancelled(task)
            await self._over(task)
            raise
        await self._over(task)
        await self._outcome(task)

    async def _pump(self, responses: AsyncGenerator[Any, None]) -> None:
        async with contextlib.aclosing(responses):
            async for item in responses:
                if self._cut:
                    continue  # its client left, and the run goes on
                self._item = item
                self._arrived.set()
                await self._taken.wait()
                self._taken.clear()

    async def _next(self, task: asyncio.Task[Any]) -> bool:
        """Wait until there is an item; False when there is no more."""
        while not self._arrived.is_set():
            try:
                await self._arrived.wait()
            except asyncio.CancelledError:
                self._cancelled(task)
        self._arrived.clear()
        return not task.done() and not self._cut

    def _begun(self, work: Callable[[], Awaitable[Any]]) -> asyncio.Task[Any]:
        return self._loop.create_task(self._scoped(work), name=f"rpc {self._method}")

    async def _scoped(self, work: Callable[[], Awaitable[Any]]) -> Any:
        """Do the work of a handler in its run."""
        result = None
        try:
            # The form that does not wait for stragglers: the caller is not to wait.
            with self._opening.run as run:
                self.begin(run)
                try:
                    result = await work()
                except grpc.aio.AbortError:
                    self._finished()
                    raise
                self._finished()
        except BaseException as error:
            if not ends_here(error):
                raise
            self._stop = error
        return result

    def _finished(self) -> None:
        run = self._run
        assert run is not None  # noqa: S101  it was entered
        before = run.clock.monotonic()
        if not self.barred(run):
            self.returned(run, before)

    async def _over(self, task: asyncio.Task[Any]) -> None:
        while not task.done():
            try:
                await asyncio.wait((task,))
            except asyncio.CancelledError:
                self._cancelled(task)

    def _cancelled(self, task: asyncio.Task[Any]) -> None:
        """See to a call that gRPC has cancelled."""
        run = self._run
        again, self._cut = self._cut, True
        self._taken.set()
        if not again:
            self.left()
        if again or run is None:
            task.cancel()
        elif not (run.work.acts or goes_on(run)):
            task.cancel()  # as without us: nobody else stops it

    async def _outcome(self, task: asyncio.Task[Any]) -> Any:
        """Return or raise what the handler did, unless the caller is told otherwise."""
        if self._cut and (task.cancelled() or task.exception() is None):
            raise asyncio.CancelledError
        result = task.result()
        run = self._run
        if run is None or self._last:
            return result
        if self._answer is not None:
            await asyncio.wait((self._answer,))
        elif self._stop is not None or self.barred(run):
            await self._answered(cause_of(run, self._stop))
        else:
            return result
        return None

    # The answer

    async def say(self, cause: Cause) -> None:
        """See :meth:`LoopExchange.say`; gRPC has a place for it at any time."""
        if self._last:
            return
        self._last = True
        there = self._call.trailing_metadata() or ()
        with contextlib.suppress(grpc.aio.AbortError):
            await self._call.abort(
                CODE[cause], message(cause), (*there, cause_field(cause))
            )

    def spending(self) -> None:
        """Name the run, and hear of its stop."""
        super().spending()
        if self._run is not None:
            self._run.on_abandon(self._abandoned)
