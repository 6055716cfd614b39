"""One request of aiohttp.web and its run: what was sent, who is there, what is owed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from aiohttp import web

from hangup.config import Mode
from hangup.core.admission import stop_here
from hangup.core.cause import Cause
from hangup.servers import _aiohttp_peer as peer
from hangup.servers import _common_farewell as farewell
from hangup.servers._aiohttp_socket import SocketReader
from hangup.servers._common_exchange import (
    SERVER_ERROR,
    cause_of,
    connect,
    ends_here,
    failure,
    goes_on,
)
from hangup.servers._common_loop import LoopExchange
from hangup.servers._common_respond import CLOSE_CODE, SETTLE_FIELD, answer, to_nobody

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from hangup.core.run import Run
    from hangup.servers._common_respond import Answer
    from hangup.servers._common_terms import Opening

    Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_CLOSE_SECONDS: Final = 1.0

# aiohttp 3.14 wants keys of its own in a request, and warns of plain ones.
EXCHANGE: Final[Any] = (
    web.RequestKey("hangup", object) if hasattr(web, "RequestKey") else "hangup"
)


class Exchange(LoopExchange):
    """Serves one request. Used on its event loop.

    Args:
        request: The request.
        opening: How to serve it.
        outermost: Nobody around us may still change the response, so that it can be
            sent from here.
    """

    def __init__(
        self, request: web.Request, opening: Opening, *, outermost: bool
    ) -> None:
        super().__init__(opening)
        self._request = request
        self._outermost = outermost
        self._run: Run
        self._begun: web.StreamResponse | None = None  # the application's
        self._ours: web.StreamResponse | None = None
        self._gone = False
        self._watching = False
        self._reader: SocketReader | None = None
        self._unwatch: Callable[[], None] | None = None

    async def serve(self, handler: Handler) -> web.StreamResponse:
        """Call the handler and send its response; return what aiohttp is to send.

        Raises:
            BaseException: What the handler raised, but for a stop.
        """
        stop: BaseException | None = None
        response: web.StreamResponse | None = None
        raised: web.HTTPException | None = None
        try:
            # The form that does not wait for stragglers: aiohttp goes on to the next
            # request of the connection when this returns.
            with self._opening.run as run:
                self._run = run
                connect(run, self._opening.inbound)
                run.on_spending(self._spending)
                try:
                    response = await handler(self._request)
                except web.HTTPException as error:
                    response = raised = error
                except asyncio.CancelledError:
                    self._cancelled()
                    raise
                except ConnectionError as error:
                    # It wrote to a client that is gone, before it heard of the stop.
                    if peer.is_gone(self._request):
                        self._left()
                    if self.barred(self._run):
                        raise run.error() from error
                    raise
                await self._send(response)
        except BaseException as error:
            if not ends_here(error):
                raise
            stop = error
        finally:
            owed = await self._conclude(stop)
        if owed is not None:
            return owed
        if raised is not None:
            raise raised
        assert response is not None  # noqa: S101  the handler returned
        return response

    def begins(self, response: web.StreamResponse) -> None:
        """Take note that ``response`` begins: from here on nothing else can be said.

        Raises:
            Stop: The caller has our answer, or is about to have it.
            ConnectionResetError: The same, where no stop may be raised.
        """
        run = self._run
        if response is self._ours:
            return
        if self.barred(self._run):
            raise stop_here(run) or ConnectionResetError("the caller was answered")
        self._begun = response
        if run.joined:
            response.headers[SETTLE_FIELD[0]] = SETTLE_FIELD[1]
        if isinstance(response, web.WebSocketResponse):
            self._reader = SocketReader(response, self._left, self._context)
            if self._watching:
                self._reader.watch()
        elif run.absence.may_return:
            peer.write_into_nothing(response, lambda: goes_on(run))

    def shut_down(self) -> None:
        """Abandon the run, unless it is latent, because the process goes down."""
        if not self._run.latent:
            farewell.shut_down(self._run)

    # The end of the handler

    async def _send(self, response: web.StreamResponse) -> None:
        """Send what the handler returned, and record the outcome."""
        run = self._run
        if self.barred(self._run) or self._is_refused(response):
            return
        lazy = peer.is_lazy(response)
        if run.latent and not lazy:
            run.deliver()
            return
        before = run.clock.monotonic()
        self._last = not lazy
        failed = failure(response.status)
        if failed is not None and not run.latent:
            run.cancel(Cause.FAILED, failed)
        socket = isinstance(response, web.WebSocketResponse)
        if self._outermost and not socket:
            try:
                await response.prepare(self._request)
                await response.write_eof()
            except ConnectionError:
                self._last = False
                self._left()
                if not goes_on(run):
                    return  # aiohttp finds out for itself, in its own words
        self._last = True
        if failed is not None or run.absence.away:
            return
        if run.mode is Mode.ENFORCE and not lazy:
            # The stop did not come before the server had taken it: the answer stands.
            run.deliver(at=before)
        else:
            run.deliver()

    def _is_refused(self, response: web.StreamResponse) -> bool:
        """Whether this is the application's 500 for a call that hangup refused."""
        run = self._run
        refused = (
            self._begun is None
            and response.status == SERVER_ERROR
            and not run.latent
            and run.mode is Mode.REFUSE
            and run.cause not in (None, Cause.FAILED, Cause.DISCONNECT)
        )
        if refused:
            self.begin_answer()
        return refused

    def _cancelled(self) -> None:
        """Say for whom the handler was cancelled, where the run did not do it."""
        if self._run.abandonment is not None:
            return
        if peer.is_gone(self._request):
            self._left()

    async def _conclude(self, stop: BaseException | None) -> web.StreamResponse | None:
        """Say what is owed, and stop looking; return what is instead of a response.

        Args:
            stop: The stop that ended the application, if one did.
        """
        run = self._run
        try:
            if self._answer is not None:
                await asyncio.wait((self._answer,))
            elif stop is not None or self.barred(self._run):
                cause = cause_of(run, stop)
                if cause is Cause.DISCONNECT and self._gone:
                    self._ours = _response(to_nobody())
                    return self._begun or self._ours
                await self._answered(cause)
            else:
                return None
        finally:
            if self._unwatch is not None:
                self._unwatch()
            if self._reader is not None:
                await self._reader.close()
        return self._begun or self._ours

    # The answer

    async def say(self, cause: Cause) -> None:
        """See :meth:`LoopExchange.say`; what has begun is left unfinished."""
        if self._last:
            return
        begun = self._begun
        if isinstance(begun, web.WebSocketResponse):
            async with asyncio.timeout(_CLOSE_SECONDS):
                reason = cause.value.encode()
                await begun.close(code=CLOSE_CODE[cause], message=reason)
        elif begun is not None:
            peer.abort(self._request)
        else:
            self._last = True
            self._ours = _response(answer(cause))
            await self._ours.prepare(self._request)
            await self._ours.write_eof()

    # What the run calls back, from any thread

    def _spending(self) -> None:
        run, opening = self._run, self._opening
        run.name = opening.name or peer.template(self._request) or opening.fallback
        run.on_abandon(self._abandoned)
        self._on_loop(self._watch)

    # On the loop

    def _watch(self) -> None:
        if self._reader is not None:
            self._reader.watch()
        self._watching = True
        self._unwatch = peer.watch(
            self._request, self._left, self.shut_down, told=self._outermost
        )

    def _left(self) -> None:
        """Note that the client left."""
        run = self._run
        if self._last:
            return
        self._gone = True
        if run.absence.returned:
            return
        reader = self._reader
        if reader is not None and run.open_calls == 0 and reader.wanted:
            # It waits for the next message, and has said all it had to say.
            run.deliver()
        else:
            run.leave()


def _response(given: Answer) -> web.Response:
    status, phrase, headers, body = given
    return web.Response(status=status, reason=phrase, headers=headers, body=body)
