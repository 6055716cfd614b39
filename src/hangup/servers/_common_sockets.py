"""Hearing that a peer hung up, on a socket that somebody else reads.

A blocking server reads nothing while its application works, so it does not hear that
its client left. The kernel knows: on Linux a closed peer is an event of its own
(``EPOLLRDHUP``), apart from whatever bytes are there to be read. So nothing is read
here, not even peeked at: pipelined requests, request bodies and TLS are untouched.

A peer that shuts down its sending side only, and goes on reading, looks the same. It is
taken for gone, as nginx, asyncio and uvicorn take it.

One daemon thread serves the process. It starts with the first socket and ends when it
has had none for a while.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
from typing import TYPE_CHECKING, Any, Final

from hangup.core.guard import guarded

if TYPE_CHECKING:
    from collections.abc import Callable

_IDLE_SECONDS: Final = 5.0


class _Entry:
    """One socket that is watched for one request."""

    __slots__ = ("callback", "fd")

    def __init__(self, fd: int, callback: Callable[[], None]) -> None:
        self.fd = fd
        self.callback = callback


class SocketWatch:
    """Watches sockets for the end of their peers. Thread-safe; nothing blocks.

    A file descriptor may be closed by its owner at any time, and its number be given to
    another connection. The kernel drops a closed one by itself, and whatever it reports
    is looked at again before it is believed.
    """

    def __init__(self) -> None:
        self._epoll: Any = None
        self.reset()

    def reset(self) -> None:
        """Begin anew, as a forked child must: the thread did not come along."""
        self._lock = threading.Lock()
        self._entries: dict[int, _Entry] = {}
        self._running = False
        epoll, self._epoll = self._epoll, None
        if epoll is not None:
            # The child's own descriptor of it: the parent's goes on.
            epoll.close()

    @property
    def watched(self) -> int:
        """How many sockets are watched."""
        return len(self._entries)

    def watch(self, fd: int, callback: Callable[[], None]) -> Callable[[], None] | None:
        """Call ``callback`` once, on the watching thread, when the peer has hung up.

        At once, if it has already. A socket has one watcher: a newer one takes the
        place of an older.

        Args:
            fd: The socket's file descriptor. It stays its owner's.
            callback: Must not block.

        Returns:
            A function that stops watching (idempotent; call it before the socket's
            owner closes it), or None where this cannot be watched: the system is not
            Linux, ``select`` was replaced (gevent), or ``fd`` is no open socket.
        """
        if getattr(select, "epoll", None) is None:
            return None
        entry = _Entry(fd, callback)
        with self._lock:
            if self._epoll is None:
                self._epoll = select.epoll()
            try:
                self._arm(fd)
            except (OSError, ValueError):
                return None
            self._entries[fd] = entry
            if not self._running:
                self._start()

        def forget() -> None:
            with self._lock:
                if self._entries.get(fd) is entry:
                    self._drop(fd)

        return forget

    def _arm(self, fd: int) -> None:
        events = select.EPOLLRDHUP | select.EPOLLONESHOT  # and always HUP and ERR
        try:
            self._epoll.register(fd, events)
        except FileExistsError:
            self._epoll.modify(fd, events)

    def _drop(self, fd: int) -> None:
        del self._entries[fd]
        with contextlib.suppress(OSError):  # its owner has closed it
            self._epoll.unregister(fd)

    def _start(self) -> None:
        thread = threading.Thread(target=self._serve, name="hangup-peers", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the interpreter is going down: nobody leaves any more
            return
        self._running = True

    def _serve(self) -> None:
        while True:
            for fd, _ in self._epoll.poll(_IDLE_SECONDS):
                self._reported(fd)
            with self._lock:
                if not self._entries:
                    self._running = False
                    return

    def _reported(self, fd: int) -> None:
        with self._lock:
            entry = self._entries.get(fd)
            if entry is None:
                return
            if not _hung_up(fd):
                with contextlib.suppress(OSError):
                    self._arm(fd)
                return
            self._drop(fd)
        guarded(entry.callback)


def _hung_up(fd: int) -> bool:
    """Whether the peer of this very socket is gone now."""
    poll = select.poll()
    poll.register(fd, select.POLLRDHUP)
    return any(
        event & (select.POLLRDHUP | select.POLLHUP | select.POLLERR)
        for _, event in poll.poll(0)
    )


def hung_up(fd: int) -> bool | None:
    """Whether the peer of a socket is gone now; None where that cannot be told."""
    if getattr(select, "POLLRDHUP", None) is None:
        return None
    return _hung_up(fd)


_watch = SocketWatch()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_watch.reset)

watch = _watch.watch
