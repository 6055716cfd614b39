"""What the caller of an abandoned run is told, by cause.

========== ============== ===============
cause      HTTP           WebSocket close
========== ============== ===============
deadline   504            4504
killed     409            4409
superseded 409            4409
shutdown   503            1012
failed     500            1011
disconnect nothing        nothing
========== ============== ===============

What must have a response for a client that is gone (an access log, a middleware around
us) sees one of status 499, as proxies log it (nginx: client closed request); nobody
else does. A caller who is still connected although the run is abandoned with
``disconnect`` (the user behind them left) is told like one whose run was killed. The
reason of a WebSocket close is the cause.
"""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import Final, NamedTuple

from hangup.core.cause import Cause

CAUSE_HEADER: Final = "hangup-cause"
SETTLE_FIELD: Final = ("hangup-settle", "1")
"""On the response of a joined run: its fate is held until the caller tells it."""

_RETRY_AFTER_SECONDS = 1

_STATUS: Final = {
    Cause.DEADLINE: 504,
    Cause.KILLED: 409,
    Cause.SUPERSEDED: 409,
    Cause.SHUTDOWN: 503,
    Cause.FAILED: 500,
    Cause.DISCONNECT: 409,
}
CLOSE_CODE: Final = {
    Cause.DEADLINE: 4504,
    Cause.KILLED: 4409,
    Cause.SUPERSEDED: 4409,
    Cause.SHUTDOWN: 1012,
    Cause.FAILED: 1011,
    Cause.DISCONNECT: 4409,
}
_TEXT: Final = {
    Cause.DEADLINE: "The deadline passed before there was an answer.",
    Cause.KILLED: "The run was stopped.",
    Cause.SUPERSEDED: "A newer request took the place of this one.",
    Cause.SHUTDOWN: "The server is shutting down; try again.",
    Cause.FAILED: "The run failed.",
    Cause.DISCONNECT: "The run was abandoned: its user left.",
}


_CLOSED: Final = 499


class Answer(NamedTuple):
    """An HTTP response."""

    status: int
    phrase: str
    headers: list[tuple[str, str]]
    body: bytes


def message(cause: Cause) -> str:
    """Return what a caller is told in words. Says nothing secret."""
    return _TEXT[cause]


def answer(cause: Cause) -> Answer:
    """Return the HTTP response for a cause. Says nothing secret."""
    body = json.dumps({"error": cause.value, "message": message(cause)}).encode()
    headers = [
        ("content-type", "application/json"),
        ("content-length", str(len(body))),
        (CAUSE_HEADER, cause.value),
    ]
    if cause is Cause.SHUTDOWN:
        headers.append(("retry-after", str(_RETRY_AFTER_SECONDS)))
    status = HTTPStatus(_STATUS[cause])
    return Answer(status.value, status.phrase, headers, body)


def to_nobody() -> Answer:
    """Return the HTTP response for a client that is gone."""
    headers = [
        ("content-type", "text/plain"),
        ("content-length", "0"),
        (CAUSE_HEADER, Cause.DISCONNECT.value),
    ]
    return Answer(_CLOSED, "Client Closed Request", headers, b"")
