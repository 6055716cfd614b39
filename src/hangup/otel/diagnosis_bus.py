"""Whether the bus can be reached from this process: for ``hangup doctor``.

Told from the URL alone, over a connection of its own: no client library is needed for
it, and one that is broken is found out too.
"""

from __future__ import annotations

import contextlib
import os
import socket
from typing import Any, Final
from urllib.parse import urlsplit

from hangup import config

_PATIENCE: Final = 2.0  # seconds to connect, and again for the answer
_PORT: Final = 6379
_TLS: Final = ("rediss", "valkeys")


def look() -> dict[str, Any] | None:
    """Return where the bus is and whether it answers; None where none is configured.

    Blocks for some seconds at most. A password in the URL is not repeated.
    """
    url = getattr(config.current(), "bus_url", None) or os.environ.get("HANGUP_BUS_URL")
    if not url:
        return None
    parts = urlsplit(str(url))
    if parts.scheme == "memory":
        return {"where": "memory", "up": True, "error": None}
    is_file = parts.scheme == "unix"
    try:
        where: Any = parts.path if is_file else (parts.hostname, parts.port or _PORT)
        error = _ask(where, is_file=is_file, talks_tls=parts.scheme in _TLS)
    except (OSError, ValueError) as problem:
        error = str(problem) or type(problem).__name__
    shown = parts.path if is_file else f"{parts.hostname}:{parts.port or _PORT}"
    return {"where": shown, "up": error is None, "error": error}


def _ask(where: Any, *, is_file: bool, talks_tls: bool) -> str | None:
    family = socket.AF_UNIX if is_file else None
    with contextlib.ExitStack() as stack:
        if family is None:
            line = socket.create_connection(where, timeout=_PATIENCE)
        else:
            line = stack.enter_context(socket.socket(family))
            line.settimeout(_PATIENCE)
            line.connect(where)
        stack.enter_context(line)
        if talks_tls:
            return None  # it listens; its certificate is for its client to judge
        line.sendall(b"PING\r\n")
        answer = line.recv(64)
    # It may want a password first: then it is there all the same.
    if answer.startswith((b"+PONG", b"-NOAUTH")):
        return None
    return "what listens there does not answer as Redis does"
