"""The one reader of a server's ``receive``.

A server tells of a client's leaving only to somebody who asks, and a plain handler
that awaits a model does not. So the reader asks ahead of the application, keeps what it
gets, and hands every message on unchanged and in order.

It reads ahead only once :meth:`Reader.watch` was called, which is when the run makes
its first spending call. Until then each ``receive`` of the application is passed
straight through: no task, no buffer.

Where it does not see a client leave (the blind spots):

- while more than 64 KiB of a request body wait for the application: a body that long is
  not read ahead, so that an upload keeps its backpressure. Seen again as soon as the
  application has read the last of it;
- with ``Expect: 100-continue``, until the application reads: asking the server would
  send the ``100 Continue`` that is the application's to send or to withhold;
- on a WebSocket, while 16 messages (or 1 MiB) wait for the application;
- behind a middleware that replaces ``receive`` by one that only repeats the body;
- a network that goes silent without closing (no FIN, no RST): only the deadline helps.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, MutableMapping
    from contextvars import Context

    Message = MutableMapping[str, Any]
    Scope = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[Message]]

BODY_AHEAD: Final = 64 * 1024
"""Bytes of a request body that are read ahead of the application at most."""
MESSAGES_AHEAD: Final = 16
"""WebSocket messages that are read ahead of the application at most."""
MESSAGE_BYTES_AHEAD: Final = 1024 * 1024
"""Bytes of WebSocket messages after which no further one is read ahead."""

_PIECES_AHEAD = 1_000
_CLOSE_SECONDS = 1.0

_logger = logging.getLogger("hangup.servers.asgi")


class Reader:
    """Reads one connection's ``receive``, never twice at a time.

    Use it on the event loop that serves the connection only.

    Args:
        receive: The server's callable, or that of a middleware around us.
        scope: The connection's ASGI scope, ``http`` or ``websocket``.
        on_gone: Called once, with the server's disconnect message, the moment it is
            read. The reader cannot tell a client that left from a response that is
            complete; the callee knows which it is.
        context: What the reading task runs in, so that spans which a middleware around
            us opens there are not taken for work of the run.
    """

    # Defaults live on the class: most requests never get further than passing their
    # messages through, and then pay for four attributes.
    _asked = False  # the application has called receive
    _busy = False  # it is in the server's receive right now
    _complete = False  # the last of the request body was read
    _closed = False
    _watching = False
    _gone: Message | None = None
    _withheld = False  # it is not for the application, yet
    _task: asyncio.Task[None] | None = None
    _error: Exception | None = None
    _buffer: deque[Message] | None = None
    _held = 0
    _room: asyncio.Future[None] | None = None
    _waiters: tuple[asyncio.Future[None], ...] = ()
    _length: int | None = None
    _waits_for_continue = False

    def __init__(
        self,
        receive: Receive,
        scope: Scope,
        on_gone: Callable[[Message], None],
        context: Context,
    ) -> None:
        self._receive = receive
        self._scope = scope
        self._on_gone = on_gone
        self._context = context

    @property
    def wanted(self) -> bool:
        """Whether the application waits for a message and none is there for it."""
        return not self._buffer and (self._busy or bool(self._waiters))

    @property
    def gone(self) -> bool:
        """Whether the server has reported the disconnect."""
        return self._gone is not None

    async def receive(self) -> Message:
        """Return the next message; what the application gets as its ``receive``.

        May be cancelled while it waits: no message is lost. After the disconnect it
        returns that message again, at once, however often it is called; where that is
        withheld it waits.

        Raises:
            Exception: What the server's ``receive`` raised, in its place in the order.
        """
        self._asked = True
        while True:
            if self._buffer:
                return self._take(self._buffer)
            if self._gone is not None and not self._withheld:
                return self._gone
            if self._error is not None:
                error, self._error = self._error, None
                raise error
            if self._gone is None and self._task is None and not self._busy:
                message = await self._read()
                if message is not self._gone or not self._withheld:
                    return message
                continue
            await self._change()

    def withhold(self) -> None:
        """Keep the disconnect from the application: its run goes on without a client.

        Frameworks cut a response short when they hear of it.
        """
        self._withheld = True

    def let_go(self) -> None:
        """Let the application have the disconnect, now or when it comes. Idempotent."""
        if self._withheld:
            self._withheld = False
            self._wake()

    def watch(self) -> None:
        """Look out for the disconnect from now on, as far as the rules let it.

        Idempotent. While the application itself waits in ``receive``, that is
        enough, and no task is started.
        """
        if self._watching:
            return
        self._watching = True
        self._buffer = deque()
        if self._scope["type"] == "http":
            self._length, self._waits_for_continue = _body_of(self._scope)
        self._start()

    async def until_gone(self) -> None:
        """Wait until the disconnect was read; nobody may be reading: bound it."""
        while self._gone is None:
            await self._change()

    async def close(self) -> None:
        """Stop reading; returns when the reading task has ended. Idempotent."""
        self._closed = True
        self.let_go()
        task = self._task
        if task is not None and not task.done():
            task.cancel()
            # Bounded, for the sake of a middleware around us that eats cancels.
            await asyncio.wait((task,), timeout=_CLOSE_SECONDS)

    # Reading for the application, in its own task

    async def _read(self) -> Message:
        self._busy = True
        try:
            message = await self._receive()
            self._note(message)
        except Exception:
            # Its own problem now; asking again behind its back would change the order.
            self._watching = False
            raise
        finally:
            self._busy = False
            self._wake()
            self._start()
        return message

    def _take(self, buffer: deque[Message]) -> Message:
        message = buffer.popleft()
        self._held -= _size(message)
        room = self._room
        if room is not None and not room.done() and self._may_read():
            room.set_result(None)
        return message

    async def _change(self) -> None:
        """Wait until there is something to look at; cancelling loses nothing."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters = (*self._waiters, waiter)
        try:
            await waiter
        finally:
            self._waiters = tuple(one for one in self._waiters if one is not waiter)

    # Reading ahead, in a task of the reader's

    def _start(self) -> None:
        buffer = self._buffer
        if buffer is None or not self._watching or self._busy or self._task is not None:
            return
        if self._closed or self._gone is not None or not self._may_read():
            return
        loop = asyncio.get_running_loop()
        task = loop.create_task(
            self._pump(buffer),
            name="hangup-asgi-reader",
            context=self._context.copy(),
        )
        # An eager task factory may have run it to its end already.
        self._task = None if task.done() else task

    def _may_read(self) -> bool:
        if self._scope["type"] == "websocket":
            waiting = len(self._buffer or ())
            return waiting < MESSAGES_AHEAD and self._held < MESSAGE_BYTES_AHEAD
        if self._complete:
            return True
        if len(self._buffer or ()) >= _PIECES_AHEAD:
            return False
        if self._waits_for_continue and not self._asked:
            return False
        if self._length is not None:
            return self._length <= BODY_AHEAD
        return self._held < BODY_AHEAD

    async def _pump(self, buffer: deque[Message]) -> None:
        try:
            while self._gone is None and not self._closed:
                if not self._may_read():
                    self._room = asyncio.get_running_loop().create_future()
                    await self._room
                    continue
                whole = self._complete
                message = await self._receive()
                self._note(message)
                if self._gone is None:
                    buffer.append(message)
                    self._held += _size(message)
                self._wake()
                if whole and self._gone is None:
                    # Something around us repeats the body for whoever asks, and may
                    # do so for ever; it has no news of the client.
                    self._watching = False
                    return
        except Exception as error:  # the application's to handle, in its place
            _logger.debug("the server's receive failed", exc_info=True)
            self._error = error
            self._watching = False
        finally:
            self._task = None
            self._wake()

    def _note(self, message: Message) -> None:
        kind = message["type"]
        if kind == "http.request":
            if not message.get("more_body", False):
                self._complete = True
        elif kind in ("http.disconnect", "websocket.disconnect") and self._gone is None:
            self._gone = message
            self._on_gone(message)

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, ()
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


def _body_of(scope: Scope) -> tuple[int | None, bool]:
    """Return the length of the request's body, and whether it waits for a 100.

    The length is None where only reading tells: chunked, or HTTP/2 without one.
    """
    fields = {bytes(name).lower(): bytes(value) for name, value in scope["headers"]}
    waits = fields.get(b"expect", b"").strip().lower() == b"100-continue"
    length = fields.get(b"content-length")
    if b"transfer-encoding" in fields:
        return None, waits
    if length is not None:
        return (int(length) if length.strip().isdigit() else None), waits
    framed = str(scope.get("http_version", "1.1")).startswith("1")
    return (0 if framed else None), waits


def _size(message: Message) -> int:
    body = message.get("body") or message.get("bytes") or message.get("text") or b""
    return len(body)
