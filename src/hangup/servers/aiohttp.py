"""aiohttp.web: a run for every request and every WebSocket, watched and answered.

    from hangup.servers.aiohttp import setup
    app = web.Application()
    setup(app, budget=30)

Everything is as with ASGI (:mod:`hangup.servers.asgi`): the run is latent until the
first spending call; from then on the client's leaving abandons it, the end of the
response delivers it, and in ``enforce`` an abandoned run is answered at once, 504, 409
or 503 with a ``Hangup-Cause`` header (WebSocket: close codes 4504, 4409, 1012). Once a
response has begun its connection is aborted. So are ``on_disconnect``, the budget
header and runs of other processes.

What is aiohttp's own:

- It cancels handlers of clients that left only where ``handler_cancellation=True`` says
  so. hangup does not need it, and does not mind it; but it also cuts requests that are
  to be finished (``grace``, ``finish``).
- A run is named by the canonical path of its resource (``/threads/{id}``), else by the
  matching pattern of ``routes``, else ``http`` or ``websocket``.
- The response of a run is sent from inside the outermost middleware, which is ours
  where :func:`setup` is called after every other was added at its place. A middleware
  that is put before it later gets the response when it has been sent, and cannot change
  it any more.
- At shutdown WebSockets with a spending run are closed at once (1012, as uvicorn does).
  Requests come to their end; the callers of those that outlast ``shutdown_timeout`` are
  told to try again (503). Work that is left when the application is cleaned up is
  abandoned, cause ``shutdown``, and the books are exported.

Where a client's leaving is not seen: while a request body of more than 128 KiB waits to
be read; on a WebSocket, while 16 messages wait to be read; a network that goes silent
without closing. A close while the handler of a WebSocket waits for a message and no
spending call is open is the end of the conversation, as with ASGI.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from aiohttp import web

from hangup.otel.notices import MAX_BODY, SETTLE_HEADER
from hangup.servers._aiohttp_exchange import EXCHANGE, Exchange
from hangup.servers._common_farewell import begun, end, ended
from hangup.servers._common_settle import addressed, take
from hangup.servers._common_terms import Keywords, RouteSettings, Terms

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from hangup.servers._common_terms import Opening

    Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

__all__ = ["RouteSettings", "setup"]


def setup(app: web.Application, **terms: Unpack[Keywords]) -> None:
    """Open a run per request and WebSocket of an application, and of those below it.

    Call it once, before the application starts.

    Args:
        app: The application; the outermost one, where they are nested.
        terms: ``budget``, ``mode``, ``name``, ``tenant``, ``routes``,
            ``budget_header``, ``on_disconnect`` and ``grace``, each as
            :class:`~hangup.servers._common_terms.Keywords` tells.

    Raises:
        ConfigError: A budget or grace that is negative or NaN, an unknown mode or
            ``on_disconnect``, a pattern that does not start with ``/``.
        RuntimeError: The application has started: aiohttp takes nothing more.
        TypeError: There is no such keyword.
    """
    adapter = _Adapter(Terms(**terms))
    app.middlewares.insert(0, adapter.serve)
    # First, so that a response that is barred is stopped before others see it.
    app.on_response_prepare.insert(0, adapter.prepared)
    app.on_startup.append(adapter.started)
    app.on_shutdown.append(adapter.stopping)
    app.on_cleanup.append(adapter.ended)


class _Adapter:
    """Serves one application. Used on its event loop."""

    def __init__(self, terms: Terms) -> None:
        self._terms = terms
        self._running = False
        self._sockets: set[Exchange] = set()

    @web.middleware
    async def serve(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Serve one request, or pass it through. Never raises a stop."""
        if request.headers.get(SETTLE_HEADER) == "1" and addressed(
            request.method, request.path, ""
        ):
            return web.Response(status=take(await _body(request)))
        opening, kind = self._opening(request)
        if opening is None:
            return await handler(request)
        outermost = request.match_info.apps[0].middlewares[0] == self.serve
        exchange = Exchange(request, opening, outermost=outermost)
        request[EXCHANGE] = exchange
        if kind == "websocket":
            self._sockets.add(exchange)
        try:
            return await exchange.serve(handler)
        finally:
            self._sockets.discard(exchange)

    def _opening(self, request: web.Request) -> tuple[Opening | None, str]:
        if EXCHANGE in request:
            self._terms.stands_inside()
            return None, ""
        upgrade = request.headers.get("Upgrade", "").strip().lower()
        kind = "websocket" if upgrade == "websocket" else "http"
        opening = self._terms.open(
            kind, request.method, request.path, "", _headers(request), request
        )
        return opening, kind

    async def prepared(
        self, request: web.BaseRequest, response: web.StreamResponse
    ) -> None:
        """Take note of a response that is about to begin."""
        exchange = request.get(EXCHANGE)
        if exchange is not None:
            exchange.begins(response)

    async def started(self, _app: web.Application) -> None:
        """Count the application as running."""
        self._running = True
        begun()

    async def stopping(self, _app: web.Application) -> None:
        """Close the WebSockets: they have no end of their own."""
        for exchange in tuple(self._sockets):
            exchange.shut_down()

    async def ended(self, _app: web.Application) -> None:
        """See to what lives on after the application."""
        if self._running:
            self._running = False
            if ended():
                await end()


def _headers(request: web.Request) -> Iterator[tuple[bytes, bytes]]:
    for name, value in request.raw_headers:
        yield name.lower(), value


async def _body(request: web.Request) -> bytes:
    """Return the body, or as much of it as shows it too long."""
    body = bytearray()
    while len(body) <= MAX_BODY and (data := await request.content.readany()):
        body += data
    return bytes(body)
