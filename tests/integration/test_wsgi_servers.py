"""WSGI servers in this process: one that shows its sockets, and two that do not."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler
from wsgiref.simple_server import make_server as make_wsgiref

import pytest
import waitress  # type: ignore[import-untyped]
from support.asgi import Journal, spend
from support.servers import read_all
from werkzeug.serving import WSGIRequestHandler as WerkzeugHandler
from werkzeug.serving import make_server as make_werkzeug

from hangup.core import registry
from hangup.servers.wsgi import HangupMiddleware

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

pytestmark = pytest.mark.timeout(60)

_PATIENCE = 20.0


@contextlib.contextmanager
def werkzeug(app: WSGIApplication) -> Iterator[int]:
    class Quiet(WerkzeugHandler):
        protocol_version = "HTTP/1.1"

        def log(self, *_args: object) -> None: ...

    server = make_werkzeug("127.0.0.1", 0, app, threaded=True, request_handler=Quiet)
    with running(server.serve_forever):
        yield server.port
        server.shutdown()
    server.server_close()


@contextlib.contextmanager
def wsgiref(app: WSGIApplication) -> Iterator[int]:
    class Quiet(WSGIRequestHandler):
        def log_message(self, *_args: object) -> None: ...

    server = make_wsgiref("127.0.0.1", 0, app, handler_class=Quiet)
    with running(server.serve_forever):
        yield server.server_port
        server.shutdown()
    server.server_close()


@contextlib.contextmanager
def on_waitress(app: WSGIApplication) -> Iterator[int]:
    server: Any = waitress.create_server(
        app, host="127.0.0.1", port=0, clear_untrusted_proxy_headers=True
    )

    def serve() -> None:
        with contextlib.suppress(OSError):  # closed below: it has no other end
            server.run()

    with running(serve):
        yield server.effective_port
        server.close()


@contextlib.contextmanager
def running(serve: Callable[[], object]) -> Iterator[None]:
    thread = threading.Thread(target=serve, name="wsgi-server")
    thread.start()
    yield
    thread.join(_PATIENCE)
    assert not thread.is_alive()


SERVERS = {"werkzeug": werkzeug, "waitress": on_waitress, "wsgiref": wsgiref}


class Application:
    """Streams for as long as somebody takes it.

    Attributes:
        journal: What became of its runs.
    """

    def __init__(self) -> None:
        self.journal = Journal()
        self.closed = threading.Event()
        self.abandoned = threading.Event()
        self._pause = threading.Event()

    def __call__(
        self, environ: WSGIEnvironment, start_response: StartResponse
    ) -> Iterable[bytes]:
        start_response("200 OK", [("Content-Type", "text/plain")])
        spend().on_abandon(lambda _: self.abandoned.set())
        if environ["PATH_INFO"] == "/short":
            return [b"whole"]
        return self._stream(silent=environ["PATH_INFO"] == "/silent")

    def _stream(self, *, silent: bool) -> Iterator[bytes]:
        try:
            yield b"x" * 1000
            if silent:
                assert self.abandoned.wait(_PATIENCE)
                return
            for _ in range(int(_PATIENCE / 0.01)):
                self._pause.wait(0.01)
                yield b"x" * 1000
        finally:
            self.closed.set()


def ask(port: int, path: str) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", port), timeout=_PATIENCE)
    sock.sendall(
        f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode()
    )
    return sock


@pytest.fixture
def application() -> Iterator[Application]:
    made = Application()
    registry.add_observer(made.journal)
    yield made
    registry.remove_observer(made.journal)


@pytest.mark.parametrize("server", SERVERS)
def test_a_stream_whose_client_left_is_stopped_on_write(
    server: str, application: Application
) -> None:
    with SERVERS[server](HangupMiddleware(application)) as port:
        with ask(port, "/stream") as sock:
            assert sock.recv(100)
        assert application.abandoned.wait(_PATIENCE)
        assert application.closed.wait(_PATIENCE)
        with ask(port, "/short") as sock:
            answer = read_all(sock)
            assert answer.startswith(b"HTTP/1.")
            assert b"whole" in answer
    assert application.journal.fates == [("abandoned", "disconnect"), ("delivered",)]


def test_and_before_it_writes_where_the_server_shows_its_socket(
    application: Application,
) -> None:
    """The same on gunicorn, in tests of its own; here within one process."""
    with werkzeug(HangupMiddleware(application)) as port:
        with ask(port, "/silent") as sock:
            assert sock.recv(100)
        assert application.abandoned.wait(_PATIENCE)
        assert application.closed.wait(_PATIENCE)
    assert application.journal.fates == [("abandoned", "disconnect")]
