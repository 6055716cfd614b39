"""A server that logs what it gets, for the tests of what goes over the wire."""

from __future__ import annotations

import socket
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest

TOKEN = "0123456789abcdef" * 2

OUTSIDE = "outside.example"
"""A host off the allow-list, see :func:`resolving_outside`."""


def resolving_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the name ``OUTSIDE``, and only it, resolve to loopback."""
    resolve = socket.getaddrinfo

    def getaddrinfo(host: Any, *args: Any, **kwargs: Any) -> Any:
        outside = host in (OUTSIDE, OUTSIDE.encode())
        return resolve("127.0.0.1" if outside else host, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)


class LoggedServer:
    """A real HTTP server on loopback that logs the headers and bodies it gets."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        self.redirects: dict[str, str] = {}
        self.answer_headers: dict[str, str] = {}
        self.status = 200
        server = self

        class Handler(BaseHTTPRequestHandler):
            def _answer(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                body = self.rfile.read(length)
                sent = {key.lower(): value for key, value in self.headers.items()}
                server.requests.append((self.path, sent, body))
                target = server.redirects.get(self.path)
                self.send_response(server.status if target is None else 307)
                if target is not None:
                    self.send_header("Location", target)
                for key, value in server.answer_headers.items():
                    self.send_header(key, value)
                self.send_header("Content-Length", "0")
                self.end_headers()

            do_GET = do_POST = _answer  # noqa: N815  the names of http.server

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def url(self, path: str = "/", host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}{path}"

    def headers_of(self, path: str) -> dict[str, str]:
        """The headers of the one request to ``path``."""
        [found] = [headers for where, headers, _ in self.requests if where == path]
        return found

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@contextmanager
def logged_server() -> Iterator[LoggedServer]:
    server = LoggedServer()
    try:
        yield server
    finally:
        server.close()
