"""Celery's result backend as the board, and the thread that writes on it.

Redis keeps one key for each run that sends tied tasks (``hangup:...``), and its expiry
is a clock that every process shares. Any other backend that keeps results holds it as
the result of a task that never was, in the state ``HANGUP``. The RPC backend keeps
nothing: without a board a worker knows only what came with the message.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from hangup.core.guard import guarded
from hangup.otel import board
from hangup.otel.once import warn_once

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hangup.otel.board import Line, Post

_STATE: Final = "HANGUP"
_CAPACITY: Final = 10_000
_IDLE: Final = 5.0
# Backends that keep no result for whoever has not asked for it.
_KEEPS_NOTHING: Final = ("DisabledBackend", "RPCBackend")


class Board:
    """The board of one application. Thread-safe; its methods block and may raise."""

    def __init__(self, app: Any) -> None:
        # An application refers to whatever was made for it.
        self._app = weakref.ref(app)

    @property
    def _backend(self) -> Any:
        app = self._app()
        return None if app is None else app.backend

    def read(self, keys: Sequence[str]) -> list[Line | None]:
        """Return what stands under each key."""
        backend = self._backend
        if _is(backend, "RedisBackend"):
            pipeline = backend.client.pipeline(transaction=False)
            for key in keys:
                pipeline.get(_name(backend, key))
                pipeline.pttl(_name(backend, key))
            asked = time.monotonic()
            found = pipeline.execute()
            # Redis answers at once; it is a busy thread that reads it late.
            late = time.monotonic() - asked
            return [
                board.read(text, max(ttl, 0) / 1000 - late, time.time())
                for text, ttl in zip(found[::2], found[1::2], strict=True)
            ]
        if backend is None or _is(backend, *_KEEPS_NOTHING):
            return [None for _ in keys]
        return [_read_result(backend, key) for key in keys]

    def write(self, post: Post, text: str) -> None:
        """Put ``text`` where the post stands, for as long as it is to be kept."""
        key, backend = post.key, self._backend
        if _is(backend, "RedisBackend"):
            milliseconds = round(post.lifetime(time.monotonic()) * 1000)
            backend.client.set(_name(backend, key), text, px=milliseconds)
        elif backend is not None and not _is(backend, *_KEEPS_NOTHING):
            backend.store_result(f"hangup-{key}", text, _STATE)


def keeps_results(app: Any) -> bool:
    """Whether results of this application's tasks are kept for anybody."""
    return not _is(app.backend, "DisabledBackend")


def _is(backend: object, *names: str) -> bool:
    """By name: importing a backend imports its client."""
    return any(cls.__name__ in names for cls in type(backend).__mro__)


def _name(backend: Any, key: str) -> str:
    prefix = getattr(backend, "global_keyprefix", None) or ""
    if isinstance(prefix, bytes):
        prefix = prefix.decode()
    return f"{prefix}hangup:{key}"


def _read_result(backend: Any, key: str) -> Line | None:
    meta = backend.get_task_meta(f"hangup-{key}", cache=False)
    if not isinstance(meta, dict) or meta.get("status") != _STATE:
        return None
    return board.read(meta.get("result"), None, time.time())


class Clerk:
    """Does, in order, what talks to brokers and backends, on one daemon thread.

    Thread-safe. Bounded: with more than 10,000 things to do the next is dropped, and
    said so once. Survives a fork.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Begin anew, as a forked child must: the thread did not come along."""
        self._condition = threading.Condition()
        self._waiting: deque[Callable[[], None]] = deque()
        self._running = False
        self._busy = False

    def submit(self, errand: Callable[[], None]) -> None:
        """Have ``errand`` called. Never blocks, never raises."""
        with self._condition:
            full = len(self._waiting) >= _CAPACITY
            if not full:
                self._waiting.append(errand)
            start, self._running = not self._running, True
            self._condition.notify_all()
        if full:
            warn_once(
                "celery clerk",
                "the broker is too slow: some tasks of runs that "
                "have stopped are not revoked (said once per process)",
            )
        if start:
            thread = threading.Thread(
                target=self._work, name="hangup-celery", daemon=True
            )
            try:
                thread.start()
            except RuntimeError:  # the interpreter goes down
                self._running = False

    def flush(self, timeout: float) -> bool:
        """Wait for what is waiting, for so many seconds; return whether all is done."""
        with self._condition:
            return self._condition.wait_for(self._idle, timeout)

    def _idle(self) -> bool:
        return not self._running or not (self._waiting or self._busy)

    def _work(self) -> None:
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._waiting, _IDLE)
                if not self._waiting:
                    self._running = False
                    return
                errand, self._busy = self._waiting.popleft(), True
            try:
                _tried(errand)
            finally:
                with self._condition:
                    self._busy = False
                    self._condition.notify_all()


def _tried(errand: Callable[[], None]) -> None:
    """Do it; a broker that is down is no fault of ours, and said once."""
    try:
        errand()
    except Exception as error:  # noqa: BLE001  as many kinds as there are brokers
        warn_once(
            "celery broker",
            "a broker or result backend could not be told of a run: %r (said once per "
            "process)",
            error,
        )


clerk: Final = Clerk()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=clerk.reset)

_boards: weakref.WeakKeyDictionary[Any, Board] = weakref.WeakKeyDictionary()


def board_of(app: Any) -> Board:
    """Return the board of an application."""
    found = _boards.get(app)
    if found is None:
        found = _boards[app] = Board(app)
    return found


def look(app: Any, keys: Sequence[str]) -> list[Line | None]:
    """Return what stands under each key; None for all where it cannot be read."""
    try:
        return board_of(app).read(keys) if keys else []
    except Exception as error:  # noqa: BLE001  as many kinds as there are backends
        warn_once(
            "celery board",
            "the result backend could not be asked for runs: %r; tasks go on under "
            "the deadline they came with (said once per process)",
            error,
        )
        return [None for _ in keys]


def later(function: Callable[..., Any], *args: object) -> None:
    """Have the clerk call ``function(*args)``. Never blocks, never raises."""
    guarded(clerk.submit, lambda: function(*args))
