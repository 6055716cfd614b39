"""One connection and its run: what was sent, who is there, what is still owed."""

from __future__ import annotations

import asyncio
import logging
from contextvars import copy_context
from typing import TYPE_CHECKING

from hangup.config import Mode
from hangup.core.cause import Cause
from hangup.servers import _asgi_django, _asgi_lifespan, _asgi_signals
from hangup.servers._asgi_receive import Reader
from hangup.servers._asgi_template import template

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from hangup.core.run import Run
    from hangup.servers._asgi_receive import Message, Receive, Scope
    from hangup.servers._asgi_terms import Opening

    Send = Callable[[Message], Awaitable[None]]

_logger = logging.getLogger("hangup.servers.asgi")

SERVER_ERROR = 500


class Exchange:
    """What HTTP and WebSocket connections have in common.

    Lives on the connection's event loop; only what the run calls back may come from
    another thread, and crosses over. A connection whose run stays latent costs this
    object and its reader: no task, no timer.

    Attributes:
        reader: Its ``receive`` is the application's.
        heads_only: The server sends no bodies any more.
    """

    heads_only = False

    # Class-level defaults, as in the reader.
    _started = False  # the response has begun: nothing else can be said
    _last = False  # the last of it is being, or was, handed to the server
    _alone = False  # the client left, and the run goes on without it
    _answer: asyncio.Task[None] | None = None
    _run: Run | None = None

    def __init__(
        self, scope: Scope, receive: Receive, send: Send, opening: Opening
    ) -> None:
        self._scope = scope
        self._send = send
        self._opening = opening
        self._loop = asyncio.get_running_loop()
        # Taken before the run is entered: what we read and answer is no work of it.
        self._context = copy_context()
        self.reader = Reader(receive, scope, self._on_gone, self._context)

    def bind(self, run: Run) -> None:
        """Serve ``run``, which has just been opened."""
        self._run = run
        run.caller = "connected"
        inbound = self._opening.inbound
        if inbound is not None and inbound.gone is not None:
            at = run.clock.monotonic() - inbound.gone
            run.cancel(Cause.DISCONNECT, "abandoned upstream", at=at)
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

    async def say(self, cause: Cause) -> None:
        """Tell the caller why there is no answer, if that can still be said."""
        raise NotImplementedError

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
                cause = _cause_of(run, stop)
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

    def barred(self, run: Run) -> bool:
        """Whether the caller has had our answer, or is about to, instead.

        A failed run is not barred: the application is busy telling its caller so.
        """
        if run.latent:
            return False
        if self._answer is not None:
            return True
        abandonment = run.abandonment
        return (
            abandonment is not None
            and abandonment.cause is not Cause.FAILED
            and run.work.acts
        )

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
            _asgi_lifespan.shut_down(run)
        self._on_loop(self.reader.watch)

    def _abandoned(self, run: Run) -> None:
        abandonment = run.token.abandonment
        silent = (None, Cause.FAILED, Cause.DISCONNECT)
        self._on_loop(self.reader.let_go)
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
        cause = _cause_of(run, None)
        self._answer = self._loop.create_task(
            self._answered(cause),
            name="hangup-asgi-answer",
            # A copy: this may run inside the reading task, which has entered its own.
            context=self._context.copy(),
        )

    async def _answered(self, cause: Cause) -> None:
        try:
            await self.say(cause)
        except Exception:  # the caller cannot be reached: there is nobody to tell
            _logger.debug("the answer to an abandoned run was not sent", exc_info=True)

    def _on_gone(self, message: Message | None = None) -> None:
        run = self._run
        if run is None or self._last:
            return
        if not run.absence.returned:
            self.left(run, message)
        if _goes_on(run):
            self._alone = True
            self.goes_on_alone()


def _goes_on(run: Run) -> bool:
    """Whether the run goes on although its client left, and hangup sees to that.

    In observe mode the application hears of the client whatever it hears without us.
    """
    absence = run.absence
    return (
        (absence.returned or absence.may_return)
        and run.mode.refuses
        and not run.latent
        and run.delivered_at is None
        and run.token.abandonment is None
    )


def failure(status: int) -> str | None:
    """Return how a response of this status failed the run, None if it did not."""
    return f"status {status}" if status >= SERVER_ERROR else None


def _cause_of(run: Run, stop: BaseException | None) -> Cause:
    """Return why the run has no answer; ``stop`` may be that of a child run."""
    cause = run.cause or getattr(stop, "cause", None)
    return Cause(cause) if cause else Cause.FAILED
