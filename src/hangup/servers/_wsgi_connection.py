"""The connection of a WSGI request, as far as the server shows it."""

from __future__ import annotations

import contextlib
import socket
from errno import ECONNRESET
from typing import TYPE_CHECKING, Any

from hangup.servers import _common_sockets as sockets

if TYPE_CHECKING:
    from collections.abc import Callable
    from wsgiref.types import WSGIEnvironment

    from hangup.core.cause import Cause

_SOCKETS = ("gunicorn.socket", "werkzeug.socket")


class Connection:
    """Whether somebody is there, and how to hang up on them.

    Args:
        environ: Of the request.
    """

    def __init__(self, environ: WSGIEnvironment) -> None:
        shown = (environ.get(key) for key in _SOCKETS)
        self._socket: Any = next((one for one in shown if one is not None), None)
        # Over HTTP/2 it carries other requests, too.
        self._shared = environ.get("HTTP_VERSION") == "2"
        self._forget: Callable[[], None] | None = None

    def watch(self, left: Callable[[], None]) -> None:
        """Call ``left`` when the client hangs up, where that can be heard. Any thread.

        Call it once; it is called on the watching thread.
        """
        if self._socket is not None:
            with contextlib.suppress(OSError, ValueError):  # it is closed
                self._forget = sockets.watch(self._socket.fileno(), left)

    def unwatch(self) -> None:
        """Stop that, before the server closes the connection. Idempotent."""
        forget, self._forget = self._forget, None
        if forget is not None:
            forget()

    def is_up(self) -> bool:
        """Whether the client is known to be there."""
        if self._socket is not None:
            with contextlib.suppress(OSError, ValueError):  # it is closed
                return sockets.hung_up(self._socket.fileno()) is False
        return False

    def cut(self, cause: Cause) -> None:
        """Leave a response unfinished.

        Quietly, where the connection can be shut down here: the server hears of it with
        its next byte.

        Raises:
            ConnectionResetError: It cannot. Servers take it for a client that left.
        """
        if self._socket is None or self._shared:
            raise ConnectionResetError(ECONNRESET, f"left unfinished: {cause}")
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
