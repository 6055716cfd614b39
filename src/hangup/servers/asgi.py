"""ASGI: a run for every request and every WebSocket, watched and answered.

    from hangup.servers.asgi import HangupMiddleware
    app = HangupMiddleware(app, budget=30)

The run is latent until the application makes its first spending call: a request that
makes none is passed through, never cut, never answered for and never counted, whatever
its client does. From the first spending call on

- the client's leaving abandons the run (cause ``disconnect``), whichever middleware
  stands around this one or inside the application;
- handing the last byte to the server delivers the run; work that goes on after it
  (background tasks) is neither refused nor counted as waste, unless
  ``background_in_run`` says that it is part of the run;
- a status of 500 or above, or an exception, abandons it with cause ``failed``;
- in ``enforce``, a run that is abandoned is answered at once, before its work has
  stopped: 504 for a deadline, 409 for a killed or superseded run, 503 for a shutdown,
  each with a ``Hangup-Cause`` header (WebSocket: a close with code 4504, 4409, 1012).
  Once the response has begun it is left unfinished, so that nobody takes a part for
  the whole.

A client's leaving means what ``on_disconnect`` says:

- ``abandon``: nobody will receive the result;
- ``grace``: nothing is refused or cut for so many seconds. ``run.reattach()`` in them,
  from the request that comes back (:func:`hangup.find_run` finds the run), makes it
  nothing, and then the normal end of the application delivers the run. Without one the
  run was abandoned when the client left; so it was where the application came to its
  end meanwhile: that result has reached nobody;
- ``finish``: it is recorded (caller ``gone``). The end of the response delivers the
  run.

``run.deliver()``, called because the result is stored, delivers the run in any of them;
a disconnect after it is nothing. Deadlines and kills act as ever. Under ``grace`` and
``finish``, but not in observe mode, the application goes on writing into nothing. Over
HTTP it does not hear of the disconnect, on which frameworks cut their response short;
on a WebSocket it does when it asks for the next message.

What cannot be seen, and when (the blind spots), is told in
:mod:`hangup.servers._asgi_receive`. Besides these:

- a client that leaves while the server is taking the very last bytes counts as having
  got them;
- on a WebSocket, a close while the handler waits for a message and no spending call is
  open counts as the end of the conversation (delivered), although another task of the
  handler may be between two calls: open a ``hangup.run`` per message there;
- between two reads of the same request by a latent run the client's leaving is not
  looked for, and noticed with the first spending call.

``X-Hangup-Budget: 12.5`` on a request tightens its budget, in seconds; it never extends
it. A run of another process that arrives with the request (as OpenTelemetry baggage or
in the ``Hangup`` header) is continued under its id, its deadline and the less intrusive
of the two modes, which is never less than observe on the word of the request.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from hangup import config
from hangup.core.unwind import is_residue
from hangup.servers import _asgi_lifespan, _asgi_mark, _asgi_servers, _asgi_settle
from hangup.servers._asgi_http import HttpExchange
from hangup.servers._asgi_terms import RouteSettings, Terms
from hangup.servers._asgi_websocket import SocketExchange
from hangup.servers._common_exchange import ends_here
from hangup.servers._common_farewell import shut_down

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from hangup.config import Mode, OnDisconnect
    from hangup.core.run import Run
    from hangup.servers._asgi_exchange import Exchange, Send
    from hangup.servers._asgi_mark import Mark
    from hangup.servers._asgi_receive import Receive, Scope
    from hangup.servers._asgi_terms import Opening
    from hangup.servers._common_tenant import TenantOf

    App = Callable[[Scope, Receive, Send], Awaitable[None]]

__all__ = ["HangupMiddleware", "RouteSettings"]

_KINDS = ("http", "websocket", "lifespan")


class HangupMiddleware:
    """Opens a run per connection of an ASGI application. Pure ASGI, asyncio only.

    Put it outermost where you can. One that stands inside another passes everything
    through; but the one that zero code puts around an application makes way for it.
    Unknown scope types pass through too, and so does everything in mode ``off``; of the
    lifespan it takes note (:mod:`hangup.servers._asgi_lifespan`). Safe for concurrent
    use by one event loop or several.

    Args:
        app: The ASGI application.
        budget: Seconds an HTTP request may take, from its arrival. None is
            ``HANGUP_BUDGET``, which is not for a browser's ``EventSource``. A WebSocket
            has none unless its route says so.
        mode: off, observe, refuse or enforce (the default for a middleware added in
            code). ``HANGUP_MODE`` is a ceiling.
        name: What the runs are called in metrics. None is the route template that
            Starlette, FastAPI, Litestar, Django or Quart found, else the matching
            pattern of ``routes``, else ``http`` or ``websocket``; never the raw path.
        tenant: Whom the work is for, or a function that gets the scope and says so;
            where it says None ``HANGUP_TENANT_FROM`` does. It must not block.
        routes: Settings by path pattern, the first that matches: ``/chat``,
            ``/threads/{id}/chat`` (one segment), ``/files/{rest:path}``, ``/agents/*``
            (anything). Values are :class:`RouteSettings` or mappings with its fields.
        on_disconnect: What a client's leaving means: ``abandon`` (the default),
            ``grace`` or ``finish``. None is ``HANGUP_ON_DISCONNECT``.
        grace: Seconds in which a client may come back, under ``grace``. None is
            ``HANGUP_GRACE``.
        budget_header: Request header that may tighten the budget; "" is none, None is
            ``HANGUP_BUDGET_HEADER`` (``x-hangup-budget``).
        background_in_run: Whether what an HTTP request does after its last byte
            (background tasks) is part of its run: the run is then over when the
            application returns, its deadline stops that work too, and counts the run
            as abandoned although its client has the answer. A disconnect means nothing
            from the last byte on, as ever.
        shutdown_after: Seconds that runs have from SIGTERM or SIGINT on, wherever the
            lifespan passes through here; then every run of the process is abandoned,
            cause ``shutdown``, and so is what begins later. Give it less than what
            kills the process. None lets them come to their end.

    Raises:
        ConfigError: A number of seconds that is negative or NaN, an unknown mode or
            ``on_disconnect``, a pattern that does not start with ``/``.
    """

    zero_code = False
    """Whether nobody asked for it: then it makes way for one that stands inside."""

    def __init__(  # noqa: PLR0913  each is a keyword with a default
        self,
        app: App,
        *,
        budget: float | None = None,
        mode: Mode | str | None = None,
        name: str | None = None,
        tenant: str | TenantOf | None = None,
        routes: Mapping[str, RouteSettings | Mapping[str, Any]] | None = None,
        budget_header: str | None = None,
        on_disconnect: OnDisconnect | str | None = None,
        grace: float | None = None,
        background_in_run: bool = False,
        shutdown_after: float | None = None,
    ) -> None:
        self.app = app
        self._shutdown_after = config.read_seconds("shutdown_after", shutdown_after)
        self._terms = Terms(
            budget=budget,
            mode=mode,
            name=name,
            tenant=tenant,
            routes=routes,
            budget_header=budget_header,
            on_disconnect=on_disconnect,
            grace=grace,
            background_in_run=background_in_run,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection. Never raises a stop."""
        kind = scope["type"]
        if kind == "http" and _asgi_settle.is_settlement(scope):
            await _asgi_settle.serve(receive, send)
            return
        mark = _asgi_mark.around(scope)
        if kind not in _KINDS or (
            mark is not None and not mark.lets(zero_code=self.zero_code)
        ):
            if kind in _KINDS:
                self._terms.stands_inside()
            await self.app(scope, receive, send)
            return
        if kind == "lifespan":
            _asgi_mark.leave(scope, zero_code=self.zero_code, serves=True)
            after = self._shutdown_after
            await _asgi_lifespan.serve(self.app, scope, receive, send, after)
            return
        opening = self._terms.opening(scope)
        serves = opening is not None
        ours = _asgi_mark.leave(scope, zero_code=self.zero_code, serves=serves)
        with _asgi_mark.in_place_of(mark):
            if opening is None:
                await self.app(scope, receive, send)
            else:
                await self._serve(scope, receive, send, opening, ours)

    async def _serve(
        self, scope: Scope, receive: Receive, send: Send, opening: Opening, mark: Mark
    ) -> None:
        kind = scope["type"]
        exchange: Exchange = (HttpExchange if kind == "http" else SocketExchange)(
            scope, receive, send, opening
        )
        exchange.mark = mark
        stop: BaseException | None = None
        try:
            # The form that does not wait for stragglers: the server closes the
            # connection, or takes the next request on it, when this returns.
            with opening.run as run:
                exchange.bind(run)
                try:
                    await self.app(scope, exchange.receiving(), exchange.send)
                except asyncio.CancelledError as error:
                    if _asgi_lifespan.cut_by_shutdown(error):
                        shut_down(run)
                    elif _cut_by_others(run) and _asgi_servers.going_down(send):
                        shut_down(run)
                        exchange.heads_only = await _asgi_servers.release(send)
                    raise
                exchange.returned()
        except BaseException as error:
            if not (ends_here(error) or (is_residue(error) and exchange.stopped)):
                raise
            stop = error
        finally:
            await exchange.conclude(stop)


def _cut_by_others(run: Run) -> bool:
    """Whether the running task, the run's own, has a cancel that is not from hangup."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > run.work.cancels
