"""The end of the process, as far as an ASGI server tells its application of it.

Servers (uvicorn, hypercorn, granian) stop taking requests at SIGTERM, let those they
have come to their end, and only then send ``lifespan.shutdown``. So the application
is not told that its process is going down while requests are being served, and needs
not be: they are drained. Signs of it that come earlier are read elsewhere: the cancel
that uvicorn gives to requests which outlast ``timeout_graceful_shutdown``, and
hypercorn to those which outlast ``graceful_timeout``
(:mod:`hangup.servers._asgi_servers`), the close code 1012 of uvicorn's WebSockets, and
where it was asked for the signal itself (:mod:`hangup.servers._asgi_signals`).

What lives on when the application has said ``lifespan.shutdown.complete`` (background
work, requests of a server that does not drain) does not come to its end any more. It is
abandoned then, cause ``shutdown``, has ``HANGUP_SETTLE`` seconds to stop, and what was
spent is exported. That must happen here: uvicorn ends by the signal it got, and then no
``atexit`` handler runs.

What nobody can do: a process that is killed before its lifespan ends (granian's
``--workers-kill-timeout``, an orchestrator's grace period) exports nothing any more.
Let ``shutdown_after`` be less than that time.

Only the last application of the process to end does so, and only for runs of its event
loop: that loop is about to stop, others may not be.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hangup.servers import _asgi_servers, _asgi_signals
from hangup.servers._asgi_signals import Watch
from hangup.servers._common_farewell import DETAIL, begun, end, ended

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable

    from hangup.servers._asgi_receive import Message, Receive, Scope

    Send = Callable[[Message], Awaitable[None]]

_GRACEFUL: Final = "graceful shutdown"
_SERVICE_RESTART: Final = 1012  # RFC 6455, IANA registry of close codes


class _Server:
    """Whether the server drops WebSockets at the signal to end."""

    drops_sockets = False


async def serve(
    app: Callable[[Scope, Receive, Send], Awaitable[None]],
    scope: Scope,
    receive: Receive,
    send: Send,
    shutdown_after: float | None = None,
) -> None:
    """Pass the lifespan protocol through, and see to what lives on after its end.

    Args:
        app: What has a lifespan.
        scope: Of it.
        receive: The server's.
        send: The server's.
        shutdown_after: Seconds that runs have from the signal to end on; None is all
            the time that the server gives them.
    """
    running = False
    watch: Watch | None = None
    _Server.drops_sockets = _asgi_servers.drops_sockets(send)
    if shutdown_after is not None or _Server.drops_sockets:
        watch = Watch(shutdown_after, DETAIL)

    async def tapped(message: Message) -> None:
        nonlocal running
        kind = message["type"]
        if kind == "lifespan.startup.complete" and not running:
            running = True
            begun()
            if watch is not None:
                watch.start()
        elif running and kind.startswith("lifespan.shutdown."):
            running = False
            if ended():
                await end()
        await send(message)

    try:
        await app(scope, receive, tapped)
    finally:
        if watch is not None:
            watch.stop()
        if running:
            ended()


def cut_by_shutdown(error: asyncio.CancelledError) -> bool:
    """Whether uvicorn cancelled a request that outlasted its graceful shutdown."""
    return any(isinstance(arg, str) and _GRACEFUL in arg for arg in error.args)


def closed_by_shutdown(message: Message | None) -> bool:
    """Whether a WebSocket was closed because its server goes down."""
    code = None if message is None else message.get("code")
    return code == _SERVICE_RESTART or (_asgi_signals.told() and _Server.drops_sockets)
