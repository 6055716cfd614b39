"""ASGI without a line of code: the frameworks' application classes are wrapped.

The class, and there ``__call__``, is the one point that everybody comes by: servers and
tests call the application; instrumentations put their middleware, and users theirs,
inside it (``add_middleware``, ``app.asgi_app = ...``) or around it. So it does not
matter what was installed, made or imported first. What an application's own middleware
does is inside the run; what is wrapped around the application object is outside, and
the client's leaving is seen through it.

Where neither ``HANGUP_MODE`` nor a rule of the policy file says otherwise, these runs
are observed: nobody asked for more. See ``HANGUP_FRAMEWORKS``.

A :class:`~hangup.servers.asgi.HangupMiddleware` put in by hand goes before: one around
the application serves alone, one inside has its place made way for.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final

from hangup import config
from hangup.config import Mode
from hangup.otel.mending import Mending
from hangup.readers import FRAMEWORKS
from hangup.servers import _asgi_mark
from hangup.servers._asgi_terms import Terms
from hangup.servers.asgi import HangupMiddleware

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from hangup.otel.patch import Patch
    from hangup.servers._asgi_exchange import Send
    from hangup.servers._asgi_receive import Receive, Scope
    from hangup.servers.asgi import App

    Call = Callable[[Any, Scope, Receive, Send], Coroutine[Any, Any, None]]

_CLASSES: Final = {
    # FastAPI's is a subclass, and calls this one when it knows its root path.
    "starlette": ("starlette.applications", "Starlette"),
    "fastapi": ("starlette.applications", "Starlette"),
    "litestar": ("litestar.app", "Litestar"),
    "django": ("django.core.handlers.asgi", "ASGIHandler"),
    "quart": ("quart.app", "Quart"),
}


class _Installed:
    """What is installed; a framework that was wrapped once is only switched."""

    mendings: dict[tuple[str, str], Mending] = {}  # noqa: RUF012  there is only one
    terms: Terms | None = None


class ZeroCodeMiddleware(HangupMiddleware):
    """Serves one connection of an application that nobody has put a middleware in.

    Args:
        app: The application, as its framework has made it.
        terms: Of all of them.
    """

    zero_code = True

    def __init__(self, app: App, terms: Terms) -> None:
        self.app = app
        self._terms = terms
        self._shutdown_after = None


def install() -> None:
    """Wrap the classes that are imported, and the others when they are. Idempotent."""
    chosen = config.current().frameworks
    classes = {_CLASSES[name] for name in (FRAMEWORKS if chosen is None else chosen)}
    if classes and _Installed.terms is None:
        _Installed.terms = Terms(unruled=Mode.OBSERVE)
    for where in classes:
        mending = _Installed.mendings.get(where)
        if mending is None:
            mending = Mending((*where, "__call__", _served))
            _Installed.mendings[where] = mending
        mending.install()


def uninstall() -> None:
    """Give the classes back what they had. Idempotent."""
    for mending in _Installed.mendings.values():
        mending.uninstall()


def _served(call: Call, patch: Patch) -> Call:
    @functools.wraps(call)
    async def served_call(
        self: Any, scope: Scope, receive: Receive, send: Send
    ) -> None:
        terms = _Installed.terms
        # One that is mounted, or stands in a middleware of ours, is served already.
        if not patch.active or terms is None or _asgi_mark.around(scope) is not None:
            await call(self, scope, receive, send)
            return
        app = functools.partial(call, self)
        await ZeroCodeMiddleware(app, terms)(scope, receive, send)

    return served_call
