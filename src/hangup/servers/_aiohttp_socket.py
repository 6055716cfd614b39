"""The one reader of an aiohttp WebSocket.

aiohttp shows a close frame to whoever receives, and a handler that awaits a model does
not. So, once the run spends, messages are received ahead of the handler, kept, and
handed on unchanged and in order. Until then ``receive`` is passed straight through.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from aiohttp import WSMsgType

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextvars import Context

    from aiohttp import web

MESSAGES_AHEAD: Final = 16
"""Messages that are received ahead of the handler at most."""

_FOR_EVER: Final = 10.0**8
_HANDSHAKE_SECONDS: Final = 0.01

_logger = logging.getLogger("hangup.servers.aiohttp")


class SocketReader:
    """Receives for one WebSocket, never twice at a time. On its event loop only.

    Args:
        socket: The WebSocket; its ``receive`` is replaced by ours.
        on_close: Called when the client's close frame is received.
        context: What is received in ahead of the handler.
    """

    def __init__(
        self,
        socket: web.WebSocketResponse[Any],
        on_close: Callable[[], None],
        context: Context,
    ) -> None:
        self._socket = socket
        self._receive = socket.receive
        # What ``receive`` does where it is given none; not public, and may go.
        self._patience: float | None = getattr(socket, "_receive_timeout", None)
        self._on_close = on_close
        self._context = context
        self._buffer: deque[Any] = deque()
        self._task: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._asking = 0
        self._watching = False
        self._over = False
        socket.receive = self.receive  # type: ignore[method-assign]

    @property
    def wanted(self) -> bool:
        """Whether the handler waits for a message and none is there for it."""
        return self._asking > 0 and not self._buffer

    def watch(self) -> None:
        """Receive ahead of the handler from now on. Idempotent."""
        self._watching = True
        self._start()

    async def receive(self, timeout: float | None = None) -> Any:  # noqa: ASYNC109
        """Return the next message; what the handler gets as ``receive``.

        May be cancelled while it waits: no message is lost.
        """
        self._asking += 1
        try:
            if self._task is not None and not self._buffer:
                async with asyncio.timeout(timeout or self._patience):
                    await self._ahead()
            if self._buffer:
                return self._buffer.popleft()
            message = await self._receive(timeout)
            self._note(message)
        finally:
            self._asking -= 1
            self._start()
        return message

    async def close(self) -> None:
        """Stop receiving ahead. Idempotent."""
        self._over = True
        task = self._task
        if task is not None:
            task.cancel()
            await asyncio.wait((task,), timeout=1.0)

    async def _ahead(self) -> None:
        while self._task is not None and not self._buffer:
            self._changed.clear()
            await self._changed.wait()

    def _start(self) -> None:
        if not self._watching or self._over or self._task is not None or self._asking:
            return
        if len(self._buffer) < MESSAGES_AHEAD:
            self._task = asyncio.get_running_loop().create_task(
                self._pump(), name="hangup-aiohttp-reader", context=self._context.copy()
            )

    async def _pump(self) -> None:
        try:
            while not (self._socket.prepared or self._over):  # noqa: ASYNC110
                # The run spent before the handshake, which tells nobody of its end; it
                # is a matter of moments.
                await asyncio.sleep(_HANDSHAKE_SECONDS)
            while len(self._buffer) < MESSAGES_AHEAD and not self._over:
                # A timeout of the socket's is for the handler's waiting, not for ours.
                message = await self._receive(_FOR_EVER)
                self._note(message)
                self._buffer.append(message)
                self._changed.set()
        except Exception:  # the handler's own call will show it
            self._watching = False
            _logger.debug("a WebSocket could not be read ahead", exc_info=True)
        finally:
            self._task = None
            self._changed.set()

    def _note(self, message: Any) -> None:
        kind = message.type
        if kind in (WSMsgType.CLOSE, WSMsgType.CLOSING, WSMsgType.CLOSED):
            self._over = True
        if kind is WSMsgType.CLOSE:
            self._on_close()
