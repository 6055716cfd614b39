"""A bus inside one process, for tests: the same contract, and it goes down when told.

``memory://NAME`` is the same bus for everybody who gives the same name.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from threading import Condition
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from hangup.bus.base import BusDown, Holder

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hangup.bus.base import Claim

_MICRO = 1_000_000


class Memory:
    """What everybody on one bus shares. Thread-safe."""

    def __init__(self) -> None:
        self.changed: Condition = Condition()
        self.markers: dict[str, str] = {}
        self.holders: dict[str, Holder] = {}
        self.replies: defaultdict[str, deque[str]] = defaultdict(deque)
        self.ears: list[Ear] = []
        self.down: bool = False
        self.severed: int = 0

    def goes_down(self, *, keeping: bool = True) -> None:
        """Fail everybody from now on, and those who listen.

        Args:
            keeping: Whether it still knows everything when it is back.
        """
        with self.changed:
            self.down = True
            self.severed += 1
            self.ears.clear()
            if not keeping:
                self.markers.clear()
                self.holders.clear()
                self.replies.clear()
            self.changed.notify_all()

    def comes_back(self) -> None:
        """Answer again."""
        with self.changed:
            self.down = False

    def check(self) -> None:
        """Raise where it is down."""
        if self.down:
            raise BusDown("the bus in memory was told to be down")

    def publish(self, message: str) -> int:
        """Tell everybody who listens. The lock is held."""
        for ear in self.ears:
            ear.heard.append(message)
        self.changed.notify_all()
        return len(self.ears)


class Ear:
    """See :class:`hangup.bus.base.Subscription`."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self.heard: deque[str] = deque()
        with memory.changed:
            memory.check()
            memory.ears.append(self)
            self._severed = memory.severed

    def receive(self, timeout: float) -> str | None:
        """Return the next message."""
        memory = self._memory
        with memory.changed:
            memory.changed.wait_for(lambda: self.heard or self._cut, timeout)
            if self._cut:
                raise BusDown("the bus in memory went down")
            return self.heard.popleft() if self.heard else None

    @property
    def _cut(self) -> bool:
        return self._severed != self._memory.severed

    def close(self) -> None:
        """Hear no more."""
        with self._memory.changed:
            if self in self._memory.ears:
                self._memory.ears.remove(self)


class MemoryTransport:
    """See :class:`hangup.bus.base.Transport`."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory

    def subscribe(self) -> Ear:
        """Listen from now on."""
        return Ear(self._memory)

    def stop(self, run_id: str, marker: str, reply: str) -> int:
        """Post and publish a stop."""
        with self._memory.changed:
            self._memory.check()
            posted = self._memory.markers.get(run_id, f"- {marker}")
            posted = f"{reply} {posted.partition(' ')[2]}"
            self._memory.markers[run_id] = posted
            return self._memory.publish(f"stop {posted}")

    def markers(self, run_ids: Sequence[str]) -> list[str | None]:
        """Return what is posted."""
        with self._memory.changed:
            self._memory.check()
            return [self._memory.markers.get(run_id) for run_id in run_ids]

    def now(self) -> int:
        """Return the clock of the bus."""
        self._memory.check()
        return int(time.monotonic() * _MICRO)

    def claim(self, claims: Sequence[Claim]) -> list[Holder]:
        """Settle who is the newest."""
        with self._memory.changed:
            self._memory.check()
            return list(self._settle(claims))

    def _settle(self, claims: Sequence[Claim]) -> Iterator[Holder]:
        for claim in claims:
            rank = claim.rank
            held = self._memory.holders.get(claim.key)
            if held is None or (held.run_id != claim.run_id and held.rank < rank):
                held = self._memory.holders[claim.key] = Holder(rank, claim.run_id)
                self._memory.publish(f"held {claim.key} {rank} {claim.run_id}")
            yield held

    def publish(self, message: str) -> int:
        """Tell everybody who listens."""
        with self._memory.changed:
            self._memory.check()
            return self._memory.publish(message)

    def answer(self, reply: str, texts: Sequence[str]) -> None:
        """Leave answers."""
        with self._memory.changed:
            self._memory.check()
            self._memory.replies[reply].extend(texts)
            self._memory.changed.notify_all()

    def next_answer(self, reply: str, timeout: float) -> str | None:
        """Return the next answer."""
        memory = self._memory
        with memory.changed:
            memory.check()
            answers = memory.replies[reply]
            memory.changed.wait_for(lambda: answers or memory.down, timeout)
            memory.check()
            return answers.popleft() if answers else None

    def close(self) -> None:
        """Give back nothing."""

    def after_fork(self) -> None:
        """Forget nothing: a bus in memory ends at the process."""


_buses: defaultdict[str, Memory] = defaultdict(Memory)


def memory(name: str) -> Memory:
    """Return the bus of this name."""
    return _buses[name]


def connect(url: str) -> MemoryTransport:
    """Return what speaks to the bus of ``memory://NAME``."""
    return MemoryTransport(memory(urlsplit(url).netloc))
