"""WSGI, where the server shows its socket: who leaves is heard of at once."""

from __future__ import annotations

import socket
import threading
from typing import TYPE_CHECKING

import pytest
from support.asgi import spend
from support.wsgi import Server, answering, environ

import hangup
from hangup.servers import _common_sockets as sockets
from hangup.servers.wsgi import HangupMiddleware

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from wsgiref.types import StartResponse, WSGIEnvironment

    from support.asgi import Journal

    from hangup.core.run import Run

_PATIENCE = 10.0
GONE = [("abandoned", "disconnect")]


class Connection:
    """A connection whose server is a WSGI server."""

    def __init__(self) -> None:
        self.server, self.client = socket.socketpair()
        self.client.settimeout(_PATIENCE)

    def request(self, key: str = "gunicorn.socket", **more: str) -> WSGIEnvironment:
        return {**environ(**more), key: self.server}


@pytest.fixture
def connection() -> Iterator[Connection]:
    made = Connection()
    yield made
    made.server.close()
    made.client.close()


def until_stopped(run: Run) -> None:
    """Block as a handler does that waits for a model, until the run is abandoned."""
    told = threading.Event()
    run.on_abandon(lambda _: told.set())
    assert told.wait(_PATIENCE)


@pytest.mark.parametrize("key", ["gunicorn.socket", "werkzeug.socket"])
def test_a_client_that_leaves_while_the_application_waits_is_heard_of(
    key: str, connection: Connection, journal: Journal
) -> None:
    def waiting() -> None:
        run = spend()
        connection.client.close()
        until_stopped(run)
        spend()
        raise AssertionError("a stopped run went on")

    wrapped = HangupMiddleware(answering(b"x", before=waiting))
    server = Server(wrapped, connection.request(key))
    assert server.error is None
    assert server.body != b"x"
    assert journal.fates == GONE
    assert sockets._watch.watched == 0


def test_one_that_left_before_the_first_call_is_heard_of_with_it(
    connection: Connection, journal: Journal
) -> None:
    def waiting() -> None:
        connection.client.close()
        until_stopped(spend())

    Server(HangupMiddleware(answering(before=waiting)), connection.request())
    assert journal.fates == GONE


def test_a_stream_is_cut_without_an_error_to_log(
    connection: Connection, journal: Journal
) -> None:
    """The connection is shut down, and the response looks ended to what is around."""

    def app(_environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        start("200 OK", [("Content-Type", "text/plain")])
        run = spend()
        yield b"a"
        run.cancel("killed")
        yield b"b"

    server = Server(HangupMiddleware(app), connection.request())
    assert (server.written, server.error) == ([b"a"], None)
    assert connection.client.recv(1) == b""
    with pytest.raises(OSError, match="pipe"):
        connection.server.sendall(b"0\r\n\r\n")  # the server's own end of the response
    assert journal.fates == [("abandoned", "killed")]


def test_a_connection_that_others_share_is_not_cut(connection: Connection) -> None:
    def app(_environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        start("200 OK", [("Content-Type", "text/plain")])
        run = spend()
        yield b"a"
        run.cancel("killed")
        yield b"b"

    request = connection.request(HTTP_VERSION="2")
    server = Server(HangupMiddleware(app), request)
    assert isinstance(server.error, ConnectionResetError)
    connection.server.sendall(b"the other stream")


def test_leaving_after_the_last_of_a_response_is_nothing(
    connection: Connection, journal: Journal
) -> None:
    """A client that has all it was promised may go before the server is done."""
    told: list[str] = []

    def app(_environ: WSGIEnvironment, start: StartResponse) -> Iterator[bytes]:
        start("200 OK", [("Content-Type", "text/plain"), ("Content-Length", "2")])
        run = spend()
        run.on_abandon(lambda _: told.append("abandoned"))
        yield b"a"
        yield b"b"
        connection.client.close()
        here, there = socket.socketpair()
        past = threading.Event()  # past the client's leaving, which came before
        sockets.watch(here.fileno(), past.set)
        there.close()
        assert past.wait(_PATIENCE)
        here.close()

    server = Server(HangupMiddleware(app), connection.request())
    assert server.finished
    assert told == []
    assert journal.fates == [("delivered",)]


def test_what_the_next_request_of_a_connection_does_is_its_own(
    connection: Connection, journal: Journal
) -> None:
    """Keep-alive: the end of the connection is the end of the last request only."""
    kept: list[Run] = []

    def app(_environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        run = spend()
        if kept:
            connection.client.close()
            until_stopped(run)
        kept.append(run)
        start("200 OK", [("Content-Type", "text/plain")])
        return [b"x"]

    wrapped = HangupMiddleware(app)
    Server(wrapped, connection.request())
    Server(wrapped, connection.request())
    assert journal.fates == [("delivered",), *GONE]
    assert kept[0].cause is None


def test_a_latent_request_is_not_watched(connection: Connection) -> None:
    seen: list[int] = []

    def before() -> None:
        assert hangup.current_run() is not None
        seen.append(sockets._watch.watched)

    Server(HangupMiddleware(answering(b"x", before=before)), connection.request())
    assert seen == [0]


def test_a_closed_socket_harms_nobody(connection: Connection, journal: Journal) -> None:
    connection.server.close()
    server = Server(
        HangupMiddleware(answering(b"x", before=spend)), connection.request()
    )
    assert server.finished
    assert journal.fates == [("delivered",)]
