"""Who hangs up is heard of at once, and nothing they sent is touched."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from hangup.servers._common_sockets import SocketWatch, hung_up

if TYPE_CHECKING:
    from collections.abc import Iterator

_PATIENCE = 10.0


@pytest.fixture
def watch() -> SocketWatch:
    return SocketWatch()


@contextlib.contextmanager
def connection() -> Iterator[tuple[socket.socket, socket.socket]]:
    """The server's end, and the client's, over TCP."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        server, _ = listener.accept()
    server.settimeout(_PATIENCE)
    with server, client:
        yield server, client


def test_a_peer_that_hangs_up_is_reported_once(watch: SocketWatch) -> None:
    gone = threading.Event()
    calls: list[str] = []
    with connection() as (server, client):

        def callback() -> None:
            calls.append("x")
            gone.set()

        assert watch.watch(server.fileno(), callback)
        assert watch.watched == 1
        assert not gone.is_set()
        assert hung_up(server.fileno()) is False
        client.close()
        assert gone.wait(_PATIENCE)
        assert hung_up(server.fileno()) is True
    assert calls == ["x"]
    assert watch.watched == 0


def test_one_that_has_hung_up_before_is_reported_too(watch: SocketWatch) -> None:
    gone = threading.Event()
    with connection() as (server, client):
        client.sendall(b"bye")
        client.close()
        watch.watch(server.fileno(), gone.set)
        assert gone.wait(_PATIENCE)
        assert server.recv(10) == b"bye"


def test_bytes_that_wait_to_be_read_are_neither_read_nor_a_sign(
    watch: SocketWatch,
) -> None:
    """A pipelined request, or the rest of a body, is the server's."""
    gone, other = threading.Event(), threading.Event()
    with connection() as (server, client), connection() as (server_2, client_2):
        watch.watch(server.fileno(), gone.set)
        client.sendall(b"GET / HTTP/1.1\r\n")
        watch.watch(server_2.fileno(), other.set)
        client_2.close()
        assert other.wait(_PATIENCE)  # the thread has been awake since the bytes came
        assert not gone.is_set()
        assert server.recv(100) == b"GET / HTTP/1.1\r\n"
        client.close()
        assert gone.wait(_PATIENCE)


def test_what_is_forgotten_is_not_reported(watch: SocketWatch) -> None:
    forgotten, other = threading.Event(), threading.Event()
    with connection() as (server, client), connection() as (server_2, client_2):
        forget = watch.watch(server.fileno(), forgotten.set)
        assert forget is not None
        forget()
        forget()
        client.close()
        watch.watch(server_2.fileno(), other.set)
        client_2.close()
        assert other.wait(_PATIENCE)
        assert not forgotten.is_set()


def test_a_number_that_was_given_to_another_connection_is_not_mistaken(
    watch: SocketWatch,
) -> None:
    """The owner closed a watched socket, and its number came back with a new one."""
    first, second, other = threading.Event(), threading.Event(), threading.Event()
    with connection() as (server, client), connection() as (fresh, far):
        number = server.fileno()
        forget_first = watch.watch(number, first.set)
        assert forget_first is not None
        os.dup2(fresh.fileno(), number)  # closes the old one
        forget_second = watch.watch(number, second.set)
        assert forget_second is not None
        client.close()
        forget_first()  # of the request before: it has nothing to say any more
        assert watch.watched == 1
        with connection() as (server_2, client_2):
            watch.watch(server_2.fileno(), other.set)
            client_2.close()
            assert other.wait(_PATIENCE)
        assert not first.is_set()
        assert not second.is_set()
        far.close()
        assert second.wait(_PATIENCE)
        assert not first.is_set()


def test_what_cannot_be_watched_is_said(
    watch: SocketWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    with connection() as (server, _client):
        number = server.fileno()
        monkeypatch.delattr(select, "epoll")  # as gevent does
        assert watch.watch(number, lambda: None) is None
    monkeypatch.undo()
    assert watch.watch(number, lambda: None) is None
    assert watch.watched == 0


_FORKS = """
import os, socket, sys, threading
from hangup.servers import _common_sockets as sockets

here, there = socket.socketpair()
assert sockets.watch(here.fileno(), lambda: None)
child = os.fork()
if child == 0:
    gone = threading.Event()
    assert sockets._watch.watched == 0
    near, far = socket.socketpair()
    assert sockets.watch(near.fileno(), gone.set)
    far.close()
    os._exit(0 if gone.wait(10) else 1)
_, status = os.waitpid(child, 0)
assert sockets._watch.watched == 1
sys.exit(os.waitstatus_to_exitcode(status))
"""


def test_a_forked_child_begins_anew() -> None:
    subprocess.run(  # noqa: S603  our own interpreter
        [sys.executable, "-W", "ignore", "-c", _FORKS], check=True
    )
