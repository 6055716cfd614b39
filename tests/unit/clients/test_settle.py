"""The courier: bounded, batched, in the background, and never anybody's problem."""

from __future__ import annotations

import os
import socket
import threading
import time
from typing import TYPE_CHECKING

import pytest
from support.wire import TOKEN, logged_server

from hangup.clients import settle
from hangup.clients.settle import Courier, post_notices
from hangup.core.cause import Cause
from hangup.otel import notices, once, settlement
from hangup.otel.notices import Notice, Outcome
from hangup.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

CLOCK = FakeClock()
NOTICE = Notice(TOKEN, Outcome.ABANDONED, Cause.KILLED, CLOCK.monotonic(), CLOCK)


class Post:
    """Stands for the network: logs what is sent, fails or waits when told to."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, int]] = []
        self.broken: set[str] = set()
        self.open = threading.Event()
        self.open.set()
        self.entered = threading.Event()

    def __call__(self, origin: str, batch: Sequence[Notice]) -> None:
        self.entered.set()
        assert self.open.wait(5)
        self.sent.append((origin, len(batch)))
        if origin in self.broken:
            raise ConnectionRefusedError


@pytest.fixture
def post() -> Post:
    return Post()


@pytest.fixture
def courier(post: Post) -> Courier:
    return Courier(post, linger=0.0)


@pytest.fixture(autouse=True)
def _say_everything() -> Iterator[None]:
    once.forget()
    yield
    once.forget()


def test_notices_are_sent_together_per_origin_and_within_the_largest_body(
    courier: Courier, post: Post
) -> None:
    post.open.clear()
    courier.submit("http://first", NOTICE)
    assert post.entered.wait(5)
    for _ in range(notices.MAX_NOTICES + 1):
        courier.submit("http://a", NOTICE)
    courier.submit("http://b", NOTICE)
    assert not courier.flush(0.01)
    post.open.set()
    assert courier.flush(5)
    assert sorted(post.sent) == [
        ("http://a", 1),
        ("http://a", notices.MAX_NOTICES),
        ("http://b", 1),
        ("http://first", 1),
    ]


def test_a_dead_origin_is_tried_twice_then_left_alone_and_counted(
    courier: Courier, post: Post, caplog: pytest.LogCaptureFixture
) -> None:
    post.broken.add("http://dead")
    for _ in range(3):
        courier.submit("http://dead", NOTICE)
        courier.submit("http://alive", NOTICE)
        assert courier.flush(5)
    assert post.sent.count(("http://dead", 1)) == 2
    assert post.sent.count(("http://alive", 1)) == 3
    assert courier.failures == 3
    assert len(caplog.records) == 1


def test_a_full_queue_drops_and_counts(
    courier: Courier, post: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settle, "_CAPACITY", 5)
    post.open.clear()
    courier.submit("http://a", NOTICE)
    assert post.entered.wait(5)
    for _ in range(8):
        courier.submit("http://a", NOTICE)
    assert courier.failures == 3
    post.open.set()
    assert courier.flush(5)
    assert sum(count for _, count in post.sent) == 6


def test_nothing_queued_is_flushed_at_once(courier: Courier) -> None:
    assert courier.flush(0.0)


def test_the_thread_ends_when_idle_and_starts_again(
    courier: Courier, post: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settle, "_IDLE", 0.0)
    others = set(threading.enumerate())
    for expected in (1, 2):
        courier.submit("http://a", NOTICE)
        assert courier.flush(5)
        assert len(post.sent) == expected
        for thread in set(threading.enumerate()) - others:
            thread.join(5)
            assert not thread.is_alive()
    assert courier.flush(0.0)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_begins_with_an_empty_queue_and_can_send() -> None:
    with logged_server() as server:
        origin = server.url("")
        courier = settle.courier()
        courier.submit(origin, NOTICE)
        child = os.fork()
        if child == 0:
            try:
                empty = not courier._queue and courier.flush(0.0)
                courier.submit(origin, NOTICE)
                os._exit(0 if empty and courier.flush(5) else 1)
            finally:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert courier.flush(5)
        bodies = [body for _, _, body in server.requests]
        assert sum(body.count(TOKEN.encode()) for body in bodies) == 2


def test_a_post_says_what_it_is_and_carries_the_notices() -> None:
    with logged_server() as server:
        post_notices(server.url(""), [NOTICE, NOTICE])
        [(path, headers, body)] = server.requests
        assert path == "/.well-known/hangup"
        assert headers["hangup-settle"] == "1"
        assert headers["content-type"] == "application/json"
        assert notices.decode(body) is not None
        assert body.count(TOKEN.encode()) == 2


def test_a_refusal_is_a_failure() -> None:
    with logged_server() as server:
        server.status = 404
        courier = Courier(linger=0.0)
        courier.submit(server.url(""), NOTICE)
        assert courier.flush(5)
        assert courier.failures == 1
        assert len(server.requests) == 2


@pytest.mark.parametrize("origin", ["http://127.0.0.1:1", "nonsense", "http://h:port"])
def test_no_origin_raises(origin: str) -> None:
    courier = Courier(linger=0.0)
    courier.submit(origin, NOTICE)
    assert courier.flush(5)
    assert courier.failures == 1


def test_a_server_that_never_answers_costs_two_timeouts_at_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(settle, "_TIMEOUT", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        courier = Courier(linger=0.0)
        started = time.monotonic()
        courier.submit(f"http://127.0.0.1:{silent.getsockname()[1]}", NOTICE)
        assert courier.flush(5)
        assert time.monotonic() - started < 2
        assert courier.failures == 1


def test_install_registers_the_courier_and_uninstall_takes_it_away() -> None:
    settle.install()
    settle.install()
    assert settlement.observer().transport == settle.courier().submit
    settle.uninstall()
    settle.uninstall()
    assert settlement.observer().transport is None
