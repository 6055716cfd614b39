"""HTTP: a request and its response."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from typing import TYPE_CHECKING, Final

from hangup.core.cause import Cause
from hangup.servers import _asgi_respond as respond
from hangup.servers import _asgi_servers as servers
from hangup.servers import _asgi_signals
from hangup.servers._asgi_exchange import Exchange
from hangup.servers._common_exchange import end_by, failure, hides_refusal
from hangup.servers._common_farewell import shut_down

if TYPE_CHECKING:
    from hangup.core.run import Run
    from hangup.servers._asgi_receive import Message

_UNFINISHED_SECONDS: Final = 1.0


class HttpExchange(Exchange):
    """A request and its response."""

    _status = 0
    _trailers = False

    async def send(self, message: Message) -> None:
        """See :meth:`Exchange.send`."""
        run = self._run
        if run is None or self.barred(run):
            return
        kind = message["type"]
        if kind == "http.response.start":
            end_by(run, message["status"], sys.exception())
            if self._refused(run, message) or self.barred(run):
                return
            self._started = True
            self._status = message["status"]
            self._trailers = bool(message.get("trailers", False))
            if run.joined:
                headers = [*message.get("headers", ()), respond.SETTLE_HEADER]
                message = {**message, "headers": headers}
        if self._ends(kind, message):
            await self.hand_over(message, failed=failure(self._status))
        else:
            await self.forward(message)

    def returned(self) -> None:
        """Fail the run of an application that did not complete its response."""
        run = self._run
        if run is None or run.latent or run.abandonment is not None:
            return
        if self._last and run.delivered_at is None and not run.absence.away:
            run.deliver()  # with its background work, that was to be part of it
            return
        absence = run.absence
        if absence.ever or absence.returned:
            # While the caller is away, the end of the scope settles it.
            if absence.left_at is None or (self._last and not absence.away):
                run.deliver()
            elif not absence.away:
                # It was to be finished, but gave up because its client left.
                run.cancel(Cause.DISCONNECT, at=absence.left_at)
        elif not self._last and _asgi_signals.ending():
            shut_down(run)  # it was cut by who knew, as sse-starlette
        elif not self._last:
            run.cancel(Cause.FAILED, "returned without completing the response")

    def left(self, run: Run, _message: Message | None) -> None:
        """Say so to the run; a latent one remembers it, should it ever spend."""
        run.leave()

    def goes_on_alone(self) -> None:
        """Keep it from the application: frameworks cut their response short on it."""
        self.reader.withhold()

    async def say(self, cause: Cause) -> None:
        """Send the response for ``cause``, or leave one that has begun unfinished."""
        if self._last:
            return
        if self._started:
            self._last = True  # a disconnect is our own doing from here on
            # Bounded: the connection of a client that does not read is closed too.
            async with asyncio.timeout(_UNFINISHED_SECONDS):
                if await servers.cut(self._send):
                    await self.reader.until_gone()
                else:
                    await self._send(dict(respond.UNFINISHED))
            return
        self._started = self._last = True
        start, body = respond.response(cause)
        if self.heads_only:
            await servers.head(self._send, start)
            return
        await self._send(start)
        await self._send(body)

    async def excuse(self) -> None:
        """Give a middleware around us that waits for a response one, for nobody.

        Starlette's BaseHTTPMiddleware would raise "No response returned.", and the
        server log that, for every client that left.
        """
        if self._started or self._last or servers.next_to(self._send):
            return
        self._started = self._last = True
        with contextlib.suppress(Exception):  # nobody is there, as was to be expected
            for message in respond.to_nobody():
                await self._send(message)

    def _refused(self, run: Run, message: Message) -> bool:
        refused = hides_refusal(run, message["status"])
        if refused:
            self.begin_answer()
        return refused

    def _ends(self, kind: str, message: Message) -> bool:
        """Whether the response is complete with this message.

        Knows the extensions of the ASGI specification: trailers, path send, zero copy.
        """
        match kind:
            case "http.response.body" | "http.response.zerocopysend":
                return not (message.get("more_body", False) or self._trailers)
            case "http.response.pathsend":
                return not self._trailers
            case "http.response.trailers":
                return not message.get("more_trailers", False)
        return False
