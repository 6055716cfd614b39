"""Notices of other processes over WSGI."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from hangup.otel.notices import MAX_BODY, SETTLE_HEADER
from hangup.servers._common_settle import addressed, take
from hangup.servers._wsgi_environ import full_path

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment

_MARK: Final = "HTTP_" + SETTLE_HEADER.upper().replace("-", "_")


def is_settlement(environ: WSGIEnvironment) -> bool:
    """Whether the request carries notices for us and not for the application."""
    return environ.get(_MARK) == "1" and addressed(
        environ.get("REQUEST_METHOD", ""), *full_path(environ)
    )


def serve(environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
    """Take the notices; answer 204, or 400 to a body that is malformed or too long."""
    status = HTTPStatus(take(_body(environ)))
    headers = [("Content-Type", "text/plain"), ("Content-Length", "0")]
    if status is HTTPStatus.NO_CONTENT:
        headers = []
    start_response(f"{status.value} {status.phrase}", headers)
    return []


def _body(environ: WSGIEnvironment) -> bytes:
    """Return the body, or as much of it as shows it too long."""
    length = environ.get("CONTENT_LENGTH") or "0"
    wanted = min(int(length), MAX_BODY + 1) if length.isdecimal() else 0
    body = bytearray()
    while len(body) < wanted:
        data = environ["wsgi.input"].read(wanted - len(body))
        if not data:
            break
        body += data
    return bytes(body)
