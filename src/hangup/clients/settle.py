"""Sends notices to the processes that helped a run; see :mod:`hangup.otel.settlement`.

One daemon thread with the standard library's HTTP client, so that it needs no event
loop, no instrumented client and nobody's connection pool. A notice that cannot be sent
is counted and dropped: the other side's hold expires.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
from collections import deque
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from hangup.otel import settlement
from hangup.otel.notices import MAX_NOTICES, SETTLE_HEADER, SETTLE_PATH, encode
from hangup.otel.once import warn_once

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hangup.otel.notices import Notice

_CAPACITY: Final = 10_000
_LINGER: Final = 0.02
_TIMEOUT: Final = 2.0
_IDLE: Final = 5.0
_PENALTY: Final = 5.0
_AT_EXIT: Final = 1.0


POSTS: Final[dict[str, Callable[[str, Sequence[Notice]], None]]] = {}
"""What posts to origins of other schemes than HTTP's; raises as ``post_notices``."""


class Courier:
    """A bounded queue of notices and the thread that empties it. Thread-safe.

    The thread starts with the first notice and ends when there has been none for a
    while. After a fork the child begins with an empty queue.

    Args:
        post: ``post(origin, notices)`` sends at most ``MAX_NOTICES`` and raises
            ``OSError`` or ``HTTPException`` when it could not.
        linger: How long in seconds to wait for more after the first, to send together.
    """

    def __init__(
        self,
        post: Callable[[str, Sequence[Notice]], None] | None = None,
        *,
        linger: float = _LINGER,
    ) -> None:
        self._post = post or post_notices
        self._linger = linger
        self.reset()

    def reset(self) -> None:
        """Begin anew, as a forked child must: the thread did not come along."""
        self._condition = threading.Condition()
        self._queue: deque[tuple[str, Notice]] = deque()
        self._running = False
        self._busy = False
        self._down_until: dict[str, float] = {}
        self.failures: int = 0
        """Notices that were given up, for want of room or of an answer."""

    def submit(self, origin: str, notice: Notice) -> None:
        """Queue a notice. Never blocks, never raises."""
        with self._condition:
            full = len(self._queue) >= _CAPACITY
            if not full:
                self._queue.append((origin, notice))
            start = not self._running
            self._running = True
            self._condition.notify_all()
        if full:
            self._failed(origin, 1)
        if start:
            self._start()

    def flush(self, timeout: float) -> bool:
        """Wait until everything queued was sent or given up.

        Args:
            timeout: Seconds to wait at most.

        Returns:
            Whether the queue is empty.
        """
        with self._condition:
            return self._condition.wait_for(self._idle, timeout)

    def _start(self) -> None:
        thread = threading.Thread(target=self._serve, name="hangup-settle", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # no thread starts while the interpreter goes down
            with self._condition:
                self._running = False

    def _idle(self) -> bool:
        return not self._running or not (self._queue or self._busy)

    def _serve(self) -> None:
        while self._await_first():
            time.sleep(self._linger)
            with self._condition:
                waiting, self._queue = self._queue, deque()
                self._busy = True
            try:
                self._send(waiting)
            finally:
                with self._condition:
                    self._busy = False
                    self._condition.notify_all()

    def _await_first(self) -> bool:
        with self._condition:
            self._condition.wait_for(lambda: self._queue, _IDLE)
            self._running = bool(self._queue)
            return self._running

    def _send(self, waiting: Sequence[tuple[str, Notice]]) -> None:
        by_origin: dict[str, list[Notice]] = {}
        for origin, notice in waiting:
            by_origin.setdefault(origin, []).append(notice)
        for origin, notices in by_origin.items():
            for start in range(0, len(notices), MAX_NOTICES):
                self._deliver(origin, notices[start : start + MAX_NOTICES])

    def _deliver(self, origin: str, notices: Sequence[Notice]) -> None:
        # An origin that does not answer must not hold up the notices of the others.
        if self._down_until.get(origin, 0.0) > time.monotonic():
            self._failed(origin, len(notices))
            return
        for _attempt in range(2):
            with contextlib.suppress(OSError, HTTPException, ValueError):
                self._post(origin, notices)
                self._down_until.pop(origin, None)
                return
        self._down_until[origin] = time.monotonic() + _PENALTY
        self._failed(origin, len(notices))

    def _failed(self, origin: str, count: int) -> None:
        with self._condition:
            self.failures += count
        warn_once(
            "settlement",
            "%s could not be told what became of a run; it will count its answer as "
            "delivered (said once per process)",
            origin,
        )


def post_notices(origin: str, notices: Sequence[Notice]) -> None:
    """POST the notices to ``origin``.

    Raises:
        OSError: No connection, or no answer within two seconds.
        HTTPException: The answer is not HTTP, or not a success.
        ValueError: ``origin`` is not a URL.
    """
    other = POSTS.get(origin.partition(":")[0])
    if other is not None:
        try:
            other(origin, notices)
        except (OSError, ValueError):
            raise
        except Exception as error:
            raise OSError(f"notice not sent: {error!r}") from error
        return
    parts = urlsplit(origin)
    kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=_TIMEOUT)
    try:
        headers = {"Content-Type": "application/json", SETTLE_HEADER: "1"}
        connection.request("POST", SETTLE_PATH, encode(notices), headers)
        status = connection.getresponse().status
    finally:
        connection.close()
    if status >= 300:  # noqa: PLR2004  anything that is not a success
        raise HTTPException(f"status {status}")


_courier = Courier()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_courier.reset)


def courier() -> Courier:
    """Return the process-wide courier."""
    return _courier


def install() -> None:
    """Register the courier with the settlement. Idempotent."""
    settlement.set_transport(_courier.submit)
    atexit.unregister(_flush_at_exit)
    atexit.register(_flush_at_exit)


def uninstall() -> None:
    """Send what is queued, for at most a second, and unregister. Idempotent."""
    settlement.set_transport(None)
    _courier.flush(_AT_EXIT)
    atexit.unregister(_flush_at_exit)


def _flush_at_exit() -> None:
    _courier.flush(_AT_EXIT)
