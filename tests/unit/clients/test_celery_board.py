"""The board in a result backend of Celery, and the thread that writes on it."""

from __future__ import annotations

import math
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery  # type: ignore[import-untyped]

from hangup.clients import celery_board
from hangup.clients.celery_board import Board, Clerk, keeps_results, look
from hangup.core.cause import Cause
from hangup.otel import board, once
from hangup.otel.board import Post
from hangup.otel.notices import Notice, Outcome
from hangup.testing import FakeClock

if TYPE_CHECKING:
    from pathlib import Path

TOKEN = "0123456789abcdef" * 2
KEY = f"{TOKEN}-0000beef"
PATIENCE = 10.0


@pytest.fixture(params=["cache+memory://", "file://{}"])
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    return Celery("test", broker="memory://", backend=request.param.format(tmp_path))


def test_any_backend_that_keeps_results_holds_a_line(app: Any) -> None:
    clock = FakeClock(wall=time.time())
    post = Post(KEY, 10.0, clock.monotonic(), clock.wall())
    here = Board(app)
    assert here.read([KEY]) == [None]
    here.write(post, post.opened())
    [line] = here.read([KEY])
    assert line is not None
    assert line.outcome == board.OPEN
    assert line.left is not None
    assert 5 < line.left <= 10.0
    at = clock.monotonic()
    notice = Notice(TOKEN, Outcome.ABANDONED, Cause.KILLED, at, clock)
    here.write(post, post.closed(notice, clock.wall()))
    other, line = here.read([f"{TOKEN}-00000000", KEY])
    assert other is None
    assert line is not None
    assert line.cause is Cause.KILLED


def test_a_result_of_somebody_elses_is_no_line() -> None:
    app = Celery("test", broker="memory://", backend="cache+memory://")
    app.backend.store_result(f"hangup-{KEY}", "ok", "SUCCESS")
    assert Board(app).read([KEY]) == [None]


@pytest.mark.parametrize("backend", [None, "rpc://"])
def test_a_backend_that_keeps_nothing_is_no_board(backend: str | None) -> None:
    app = Celery("test", broker="memory://", backend=backend)
    Board(app).write(Post(KEY, 1.0, 0.0, 0.0), "{}")
    assert Board(app).read([KEY]) == [None]
    assert keeps_results(app) is (backend is not None)


def test_a_backend_that_is_down_is_said_once_and_stops_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    once.forget()
    app = Celery("test", broker="memory://", backend="cache+memory://")
    monkeypatch.setattr(Board, "read", lambda *_: 1 / 0)
    assert look(app, [KEY, KEY]) == [None, None]
    assert look(app, [KEY]) == [None]
    assert look(app, []) == []
    assert caplog.text.count("could not be asked for runs") == 1


# The clerk


def test_the_clerk_does_in_order_what_it_is_given_and_survives_a_fault() -> None:
    clerk, done = Clerk(), []
    clerk.submit(lambda: done.append(1))
    clerk.submit(lambda: done.clear(1))  # type: ignore[call-arg]
    clerk.submit(lambda: done.append(2))
    assert clerk.flush(PATIENCE)
    assert done == [1, 2]


def test_the_clerk_never_makes_anybody_wait_and_never_grows_without_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(celery_board, "_CAPACITY", 3)
    clerk, done = Clerk(), []
    begun, go_on = threading.Event(), threading.Event()

    def slow() -> None:
        begun.set()
        go_on.wait(PATIENCE)

    clerk.submit(slow)
    assert begun.wait(PATIENCE)
    for number in range(10):
        clerk.submit(lambda number=number: done.append(number))  # type: ignore[misc]
    assert not clerk.flush(0.01)
    go_on.set()
    assert clerk.flush(PATIENCE)
    assert done == [0, 1, 2]


def test_after_a_fork_the_clerk_begins_anew() -> None:
    clerk, done = Clerk(), []
    clerk.submit(lambda: done.append(1))
    assert clerk.flush(PATIENCE)
    clerk.reset()
    clerk.submit(lambda: done.append(2))
    assert clerk.flush(PATIENCE)
    assert done == [1, 2]


def test_a_run_without_a_deadline_is_kept_for_a_bounded_time() -> None:
    post = Post(KEY, math.inf, 0.0, 0.0)
    assert post.lifetime(0.0) < math.inf
