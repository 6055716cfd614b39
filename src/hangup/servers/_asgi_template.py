"""The route template of a request, as its framework knows it; never the path itself.

Starlette and FastAPI put the route into the scope, Litestar its template. Quart keeps
it with the request that is being served. Django tells nobody but its own request; so it
is asked again, once for a run that spends.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from hangup.core.guard import fault

if TYPE_CHECKING:
    from hangup.servers._asgi_receive import Scope


def template(scope: Scope) -> str | None:
    """Return the template the request was routed by, None where nobody knows one.

    Call it when the request has been routed, on the thread that serves it.
    """
    return (
        _text(getattr(scope.get("route"), "path", None))
        or _text(scope.get("path_template"))
        or _of_quart()
        or _of_django(scope)
    )


def _text(found: object) -> str | None:
    return found if isinstance(found, str) and found else None


def _of_quart() -> str | None:
    quart: Any = sys.modules.get("quart")
    if quart is None:
        return None
    try:
        if not (quart.has_request_context() or quart.has_websocket_context()):
            return None
        served = quart.request if quart.has_request_context() else quart.websocket
        return _text(getattr(served.url_rule, "rule", None))
    except Exception as error:  # noqa: BLE001  not the quart that was expected
        fault("quart template", error)
        return None


def _of_django(scope: Scope) -> str | None:
    # Imported by whoever serves with it, and configured by then; else it is not asked.
    urls: Any = sys.modules.get("django.urls")
    if urls is None or "django.core.handlers.asgi" not in sys.modules:
        return None
    path, root = scope.get("path", ""), scope.get("root_path", "")
    try:
        match = urls.resolve(path.removeprefix(root) or "/")
    except urls.Resolver404:
        return None
    except Exception as error:  # noqa: BLE001  the URL configuration is not ours
        fault("django template", error)
        return None
    route = _text(getattr(match, "route", None))
    return None if route is None else "/" + route.removeprefix("^").lstrip("/")
