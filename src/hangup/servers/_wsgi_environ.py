"""What a WSGI environ says of a request and its connection."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator
    from wsgiref.types import WSGIEnvironment


_FIELDS: Final = ("hangup", "baggage", "accept")


def headers(environ: WSGIEnvironment, *own: str) -> Iterator[tuple[bytes, bytes]]:
    """Yield the headers that matter to hangup, names in lower case.

    Args:
        environ: Of the request.
        own: Names of headers that the settings choose; "" is none.
    """
    for name in dict.fromkeys((*_FIELDS, *own)):
        value = environ.get(f"HTTP_{name.upper().replace('-', '_')}")
        if value is not None:
            yield name.encode("latin-1"), value.encode("latin-1")


def full_path(environ: WSGIEnvironment) -> tuple[str, str]:
    """Return the whole path, and what of it leads to the application."""
    root = _decoded(environ.get("SCRIPT_NAME", ""))
    return root + _decoded(environ.get("PATH_INFO", "")), root


def flask_rule(environ: WSGIEnvironment) -> str | None:
    """Return the rule that Flask matched, while it serves the request.

    It takes its request out of the environ before a response is streamed.
    """
    rule = getattr(environ.get("werkzeug.request"), "url_rule", None)
    found = getattr(rule, "rule", None)
    return found if isinstance(found, str) and found else None


def django_route(environ: WSGIEnvironment) -> str | None:
    """Return the route that Django finds, where Django is what serves.

    It is asked once more, as it leaves no trace of its answer in the environ; on the
    thread that serves the request, and so with the URLconf of that.
    """
    urls = sys.modules.get("django.urls")
    if urls is None or "django.core.handlers.wsgi" not in sys.modules:
        return None
    try:
        found = urls.resolve(_decoded(environ.get("PATH_INFO", "")) or "/")
    except Exception:  # noqa: BLE001  not found; or this is not Django's request
        return None
    route = getattr(found, "route", None)
    return f"/{route}" if isinstance(route, str) and route else None


def _decoded(text: str) -> str:
    """Return what PEP 3333 carries as Latin-1, read as the UTF-8 it is."""
    return text.encode("latin-1", "replace").decode("utf-8", "replace")
