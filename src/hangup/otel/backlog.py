"""What threads leave to another thread to work off, kept from growing without bound.

A thread that computes may have the interpreter's lock nearly to itself: whoever waits
for it is given it after 5 ms at the earliest, and may then only find that it was free
for a moment and is taken again. A thread that opens and closes runs back to back gets
ahead of the one that counts them, and what is queued keeps the runs alive.
"""

from __future__ import annotations

import threading
from time import sleep
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sized

_TURN: Final = 0.005  # seconds: what CPython gives a thread at a time
_TURNS: Final = 10

_thread = threading.local()


def works_off() -> None:
    """Say that the present thread is who works off queues: it gives way to nobody."""
    _thread.works_off = True


class Backlog:
    """Makes threads give way to the one that works off their queue, where it is long.

    Thread-safe. Not for event loops: they see to the queue in their next turn.

    Args:
        queue: What they add to.
        many: How long it may be before anybody gives way.

    Attributes:
        limit: Ask for :meth:`give_way` where the queue is as long.
    """

    def __init__(self, queue: Sized, many: int) -> None:
        self._queue = queue
        self._many = many
        self.limit: int = many

    def give_way(self) -> None:
        """Let others have the interpreter until the queue is short, 50 ms at most.

        Rarely where nothing moves meanwhile: a finaliser may have brought us here, and
        the very caller may hold what the other thread waits for.
        """
        if getattr(_thread, "works_off", False):
            return
        left = len(self._queue)
        for _ in range(_TURNS):
            waiting = left
            sleep(_TURN)
            left = len(self._queue)
            if left < self._many:
                self.limit = self._many
                return
            if left == waiting:
                self.limit = 2 * left
                return
        self.limit = left + self._many // 2
