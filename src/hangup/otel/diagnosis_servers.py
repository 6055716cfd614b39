"""Whether what this process serves has runs: for ``hangup doctor``."""

from __future__ import annotations

import gc
import sys
from typing import Final

_SERVERS: Final = (
    *("uvicorn", "hypercorn", "granian", "gunicorn", "daphne", "waitress"),
    *("aiohttp.web", "werkzeug.serving"),
)
# Imported by nobody but who uses it.
_BY_HAND: Final = ("hangup.servers.wsgi", "hangup.servers.aiohttp")
_ASGI: Final = "hangup.servers.asgi"
# Zero code: imports the above in every process, and serves these by itself.
_AUTO: Final = "hangup.servers._asgi_auto"
_FRAMEWORKS: Final = ("fastapi", "starlette", "litestar", "django", "quart")


def servers() -> list[str]:
    """Return the servers that are imported here."""
    return [name for name in _SERVERS if name in sys.modules]


def has_middleware() -> bool:
    """Whether some application here opens a run for each request.

    Takes some tens of milliseconds, where nothing simpler tells.
    """
    if any(name in sys.modules for name in _BY_HAND):
        return True
    auto = sys.modules.get(_AUTO)
    if auto is None:
        return _ASGI in sys.modules
    serves = getattr(getattr(auto, "_Installed", None), "terms", None) is not None
    if (serves and any(name in sys.modules for name in _FRAMEWORKS)) or (
        gc.get_freeze_count()
    ):
        return True
    middleware = getattr(sys.modules.get(_ASGI), "HangupMiddleware", None)
    return middleware is not None and any(
        type(one) is middleware for one in gc.get_objects()
    )
