"""The end of the process, as far as an ASGI server tells its application of it.

Servers (uvicorn, hypercorn, granian) stop taking requests at SIGTERM, let those they
have come to their end, and only then send ``lifespan.shutdown``. So the application
is not told that its process is going down while requests are being served, and needs
not be: they are drained. Two signs of it come earlier and are read elsewhere: the
cancel that uvicorn gives to requests which outlast ``timeout_graceful_shutdown``, and
the close code 1012 of its WebSockets.

What lives on when the application has said ``lifespan.shutdown.complete`` (background
work, requests of a server that does not drain) does not come to its end any more. It is
abandoned then, cause ``shutdown``, has ``HANGUP_SETTLE`` seconds to stop, and what was
spent is exported. That must happen here: uvicorn ends by the signal it got, and then no
``atexit`` handler runs.

Only the last application of the process to end does so, and only for runs of its event
loop: that loop is about to stop, others may not be.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hangup.servers._common_farewell import begun, end, ended

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable

    from hangup.servers._asgi_receive import Message, Receive, Scope

    Send = Callable[[Message], Awaitable[None]]

_GRACEFUL: Final = "graceful shutdown"
_SERVICE_RESTART: Final = 1012  # RFC 6455, IANA registry of close codes


async def serve(
    app: Callable[[Scope, Receive, Send], Awaitable[None]],
    scope: Scope,
    receive: Receive,
    send: Send,
) -> None:
    """Pass the lifespan protocol through, and see to what lives on after its end."""
    running = False

    async def tapped(message: Message) -> None:
        nonlocal running
        kind = message["type"]
        if kind == "lifespan.startup.complete" and not running:
            running = True
            begun()
        elif running and kind.startswith("lifespan.shutdown."):
            running = False
            if ended():
                await end()
        await send(message)

    try:
        await app(scope, receive, tapped)
    finally:
        if running:
            ended()


def cut_by_shutdown(error: asyncio.CancelledError) -> bool:
    """Whether uvicorn cancelled a request that outlasted its graceful shutdown."""
    return any(isinstance(arg, str) and _GRACEFUL in arg for arg in error.args)


def closed_by_shutdown(message: Message | None) -> bool:
    """Whether a WebSocket was closed because its server goes down."""
    return message is not None and message.get("code") == _SERVICE_RESTART
