"""WebSocket: a conversation, and who ended it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hangup.servers import _asgi_respond as respond
from hangup.servers._asgi_exchange import Exchange
from hangup.servers._asgi_lifespan import closed_by_shutdown
from hangup.servers._common_exchange import failure
from hangup.servers._common_farewell import shut_down

if TYPE_CHECKING:
    from hangup.core.cause import Cause
    from hangup.core.run import Run
    from hangup.servers._asgi_receive import Message

_INTERNAL_ERROR: Final = 1011  # RFC 6455, 7.4.1


class SocketExchange(Exchange):
    """A WebSocket connection."""

    _status = 0

    async def send(self, message: Message) -> None:
        """See :meth:`Exchange.send`."""
        run = self._run
        if run is None or self.barred(run):
            return
        match message["type"]:
            case "websocket.close":
                code = message.get("code", 1000)
                failed = "close code 1011" if code == _INTERNAL_ERROR else None
                await self.hand_over(message, failed=failed)
            case "websocket.http.response.start":
                self._started = True
                self._status = message["status"]
                await self.forward(message)
            case "websocket.http.response.body" if not message.get("more_body", False):
                await self.hand_over(message, failed=failure(self._status))
            case _:
                await self.forward(message)

    def returned(self) -> None:
        """Deliver the run: what was to be said was said."""
        run = self._run
        if run is not None and run.abandonment is None and not run.absence.away:
            run.deliver()

    def left(self, run: Run, message: Message | None) -> None:
        """Tell a client that walks away from an answer from one that has it.

        A handler that waits for the next message, with no spending call open, has said
        all it had to say; the close is then the end of the conversation. Only a run per
        message (``hangup.run`` in the handler) knows more. The disconnect is never
        withheld here: a handler asks for messages, and no other will come.
        """
        if run.open_calls == 0 and self.reader.wanted:
            run.deliver()
        elif closed_by_shutdown(message) and not run.absence.may_return:
            shut_down(run)
        else:
            run.leave()

    async def say(self, cause: Cause) -> None:
        """Close the connection for ``cause``; refuse one that is not accepted yet."""
        if self._last or self._started:
            return
        self._last = True
        await self._send(respond.closing(cause))
