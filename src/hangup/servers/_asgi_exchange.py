"""One connection and its run: what was sent, who is there, what is still owed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from hangup.config import Mode
from hangup.core.cause import Cause
from hangup.servers import _asgi_django, _asgi_signals
from hangup.servers._asgi_receive import Reader
from hangup.servers._asgi_template import template
from hangup.servers._common_exchange import cause_of, connect, goes_on
from hangup.servers._common_farewell import shut_down
from hangup.servers._common_loop import LoopExchange

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from hangup.core.run import Run
    from hangup.servers._asgi_mark import Mark
    from hangup.servers._asgi_receive import Message, Receive, Scope
    from hangup.servers._asgi_terms import Opening

    Send = Callable[[Message], Awaitable[None]]


class Exchange(LoopExchange):
    """What HTTP and WebSocket connections have in common.

    A connection whose run stays latent costs this object and its reader: no task, no
    timer.

    Attributes:
        reader: Its ``receive`` is the application's.
        heads_only: The server sends no bodies any more.
        mark: Of the middleware it is for.
    """

    heads_only = False
    mark: Mark | None = None

    # Class-level defaults, as in the reader.
    _started = False  # the response has begun: nothing else can be said
    _alone = False  # the client left, and the run goes on without it

    def __init__(
        self, scope: Scope, receive: Receive, send: Send, opening: Opening
    ) -> None:
        super().__init__(opening)
        self._scope = scope
        self._send = send
        self.reader = Reader(receive, scope, self._on_gone, self._context)

    def bind(self, run: Run) -> None:
        """Serve ``run``, which has just been opened."""
        self._run = run
        connect(run, self._opening.inbound)
        run.on_spending(self._spending)

    def receiving(self) -> Receive:
        """Return what the application gets as ``receive``."""
        if self._run is None:  # pragma: no cover  bound before it is asked
            return self.reader.receive
        return _asgi_django.receiving(self.reader, self._run, self._on_loop)

    async def send(self, message: Message) -> None:
        """Hand a message of the application on; what the application gets as ``send``.

        After the run was stopped nothing of the application gets out any more, and it
        is not told: the stop reaches it by another way.
        """
        raise NotImplementedError

    def returned(self) -> None:
        """Note that the application returned; call it while the run is open."""
        raise NotImplementedError

    def left(self, run: Run, message: Message | None) -> None:
        """Note that the client left; ``message`` is the server's word of it, if any."""
        raise NotImplementedError

    def goes_on_alone(self) -> None:
        """See to a run that goes on although its client left."""

    async def excuse(self) -> None:
        """See that nobody around us misses an answer that has no caller any more."""

    async def conclude(self, stop: BaseException | None) -> None:
        """Say what is owed, and stop reading. Call it when the run was left.

        Args:
            stop: The stop that ended the application, if one did.
        """
        run = self._run
        try:
            if self._answer is not None:
                await asyncio.wait((self._answer,))
            elif run is not None and (stop is not None or self.barred(run)):
                cause = cause_of(run, stop)
                if cause is Cause.DISCONNECT and self.reader.gone:
                    await self.excuse()
                else:
                    await self._answered(cause)
        finally:
            await self.reader.close()

    @property
    def stopped(self) -> bool:
        """Whether the application was stopped, its caller being told or gone."""
        return self._run is not None and self.barred(self._run)

    # For the two kinds

    async def forward(self, message: Message) -> None:
        """Hand a message to the server, unchanged.

        Servers take what is sent to a client that left and drop it, or fail. Where the
        run goes on without its client, the application does not hear of either.
        """
        try:
            await self._send(message)
        except Exception as error:
            # ASGI 2.4: the server's way to say, on a send, that the client is gone.
            if isinstance(error, OSError):
                self._on_gone()
            if not self._alone:
                raise

    async def hand_over(self, message: Message, *, failed: str | None) -> None:
        """Forward the last message of a response, and record the outcome of the run.

        Until the server has taken it, a disconnect means nothing: servers report one
        after a complete response too, and may do so before this returns.
        """
        run = self._run
        assert run is not None  # noqa: S101  bound before the application is called
        before = run.clock.monotonic()
        first, self._last = not self._last, True
        if failed is not None and not run.latent:
            # Before the server has it: a server span around us ends with this message,
            # and the cause must be on it by then.
            run.cancel(Cause.FAILED, failed)
        try:
            await self._send(message)
        except BaseException as error:
            if first:
                self._last = False
                if isinstance(error, OSError) or self.reader.gone:
                    self._on_gone()
            if not self._alone or not isinstance(error, Exception):
                raise
            self._last = True
        self.reader.let_go()
        if (failed is not None and not run.latent) or run.absence.away:
            return
        if self._opening.background_in_run:
            return  # it is over when the application has returned
        if run.mode is Mode.ENFORCE:
            # The stop did not come before the server had taken it: the answer stands,
            # although the deadline may have passed in these microseconds.
            run.deliver(at=before)
        else:
            run.deliver()

    # What the run calls back, from any thread

    def _spending(self) -> None:
        run = self._run
        if run is None:  # pragma: no cover  registered by bind
            return
        opening = self._opening
        run.name = opening.name or template(self._scope) or opening.fallback
        run.on_abandon(self._abandoned)
        if _asgi_signals.over():
            shut_down(run)
        self._on_loop(self.reader.watch)

    def _abandoned(self, run: Run) -> None:
        self._on_loop(self.reader.let_go)
        super()._abandoned(run)

    # On the loop

    def _on_gone(self, message: Message | None = None) -> None:
        run = self._run
        if run is None or self._last:
            return
        if not run.absence.returned:
            self.left(run, message)
        if goes_on(run):
            self._alone = True
            self.goes_on_alone()
