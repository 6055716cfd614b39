"""WSGI: a run for every request, on the thread that serves it.

    from hangup.servers.wsgi import HangupMiddleware
    app.wsgi_app = HangupMiddleware(app.wsgi_app, budget=30)  # Flask
    application = HangupMiddleware(get_wsgi_application(), budget=30)  # Django

As with ASGI the run is latent until the application makes its first spending call: a
request that makes none is passed through, never cut, never answered for and never
counted. From the first spending call on

- the client's leaving abandons the run (cause ``disconnect``). Where the server shows
  its socket (gunicorn's sync and gthread workers, werkzeug's own server) and the system
  is Linux, it is heard of at once, also while the application waits for a model.
  Elsewhere (waitress, uWSGI, mod_wsgi, gevent, other systems) it is noticed when the
  response is written: T0 is then that moment;
- the end of the response delivers the run; what ``close()`` of the response does later
  is neither refused nor counted as waste. A file handed to ``wsgi.file_wrapper`` counts
  as delivered when it is handed over;
- a status of 500 or above, or an exception, abandons it with cause ``failed``, and a
  worker that is told to exit (``SystemExit``) with ``shutdown``;
- in ``enforce``, a run that is abandoned is answered instead of what the application
  says: 504 for a deadline, 409 for a killed or superseded run, 503 for a shutdown, each
  with a ``Hangup-Cause`` header. A response that has begun is left unfinished.

What a client's leaving means (``on_disconnect``), the budget header and runs of other
processes are as in :mod:`hangup.servers.asgi`. Under ``grace`` and ``finish`` a
response whose client left is still read to its end.

The limits of a blocking server:

- **Nothing interrupts a thread.** The stop reaches the application at its next spending
  call, the next chunk of a synchronous model stream, or the next chunk of its own
  response, and the answer (504 and so on) goes out then, not before. What waits for a
  whole answer of a model goes on until that came; it is reported as not stopped
  (``hangup.task.unsettled``) and what it spent after T0 is counted as wasted. A
  deadline does end such a wait: the HTTP client layer lets no timeout outlast it.
  What runs in an event loop inside the thread (``async`` views, ``asyncio.run``, the
  ``run_sync`` of agent frameworks) is stopped at once.
- A client that closes only its sending side counts as gone (nginx takes it so too).
- An HTTP/1.0 client cannot tell a response left unfinished from one that ended, unless
  it has a ``Content-Length``.
- A server that does not show its socket hears of a response left unfinished by an
  ``OSError`` of the application; waitress and uWSGI log it.
- Over gunicorn's HTTP/2 only the end of the connection is heard of, not that of a
  stream.
- ``start_response`` reaches the server with the first bytes of a response that is made
  while it is sent, not before; until then it can be replaced by an answer.
- Notices of other processes reach one worker process; only the one that holds the run
  can use them.
- gunicorn's ``SIGTERM`` lets requests come to their end, for ``graceful_timeout``
  seconds; then their process is killed and what they spent last is not exported. Keep
  budgets below it. For ``SIGINT`` and ``SIGQUIT``, which do not wait, put
  ``from hangup.servers.wsgi import worker_int`` in ``gunicorn.conf.py``.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Unpack

from hangup.core import registry
from hangup.servers import _wsgi_settle
from hangup.servers._common_terms import Keywords, RouteSettings, Terms
from hangup.servers._wsgi_environ import full_path, headers
from hangup.servers._wsgi_exchange import Exchange

if TYPE_CHECKING:
    from collections.abc import Iterable
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

    from hangup.servers._common_terms import Opening

__all__ = ["HangupMiddleware", "RouteSettings", "worker_int"]

_MARK = "hangup.middleware"


class HangupMiddleware:
    """Opens a run per request of a WSGI application (PEP 3333).

    Put it outermost where you can. One that stands inside another passes everything
    through, and so does everything in mode ``off``. Safe for concurrent use by threads.

    Args:
        app: The WSGI application.
        terms: ``budget``, ``mode``, ``name``, ``tenant``, ``routes``,
            ``budget_header``, ``on_disconnect`` and ``grace``, each as
            :class:`~hangup.servers._common_terms.Keywords` tells. Flask and Django
            name a run by the rule or route they found.

    Raises:
        ConfigError: A budget or grace that is negative or NaN, an unknown mode or
            ``on_disconnect``, a pattern that does not start with ``/``.
        TypeError: There is no such keyword.
    """

    def __init__(self, app: WSGIApplication, **terms: Unpack[Keywords]) -> None:
        self.app = app
        self._terms = Terms(**terms)

    def __call__(
        self, environ: WSGIEnvironment, start_response: StartResponse
    ) -> Iterable[bytes]:
        """Serve one request. Never raises a stop."""
        if _wsgi_settle.is_settlement(environ):
            return _wsgi_settle.serve(environ, start_response)
        opening = self._opening(environ)
        if opening is None:
            return self.app(environ, start_response)
        return Exchange(environ, start_response, opening).serve(self.app)

    def _opening(self, environ: WSGIEnvironment) -> Opening | None:
        if _MARK in environ:
            self._terms.stands_inside()
            return None
        path, root = full_path(environ)
        method = environ.get("REQUEST_METHOD", "")
        fields = headers(environ, *self._terms.own_headers)
        opening = self._terms.open("http", method, path, root, fields, environ)
        if opening is not None:
            environ[_MARK] = True
        return opening


def worker_int(_worker: object) -> None:
    """Abandon the runs of a gunicorn worker that quits at once, cause ``shutdown``.

    A server hook: name it in ``gunicorn.conf.py``. Callers of a threaded worker are
    told to try again (503), as soon as their handlers can be stopped.
    """
    # A signal handler: the locks of the runs may be held by the very frame below.
    threading.Thread(target=registry.shutdown, name="hangup-shutdown").start()
