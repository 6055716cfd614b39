"""What a bus can carry, and what may be asked of one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

MARKER_TTL: Final = 86_400
"""Seconds a kill stays posted: also for work that waits in a queue overnight."""
HELD_TTL: Final = 600
"""Seconds the newest holder of a supersede key is remembered after it was last seen."""
REPLY_TTL: Final = 30
"""Seconds an answer waits to be read."""


class BusDown(Exception):  # noqa: N818  it states a fact about the bus
    """The bus cannot be reached, or refuses; says why."""


class Claim(NamedTuple):
    """A run that wants to be the newest holder of a supersede key.

    Attributes:
        key: The key, as :func:`hangup.bus.messages.key_name` spells it.
        run_id: Whose; a run is not superseded by one with the same id.
        rank: When it began to, on the clock of the bus in microseconds.
    """

    key: str
    run_id: str
    rank: int


class Holder(NamedTuple):
    """The newest holder of a supersede key.

    Attributes:
        rank: When it began, on the clock of the bus in microseconds; higher is newer.
        run_id: Which run it is.
    """

    rank: int
    run_id: str


class Subscription(Protocol):
    """What one process hears of the bus. Used by one thread."""

    def receive(self, timeout: float) -> str | None:
        """Return the next message; None where none came in ``timeout`` seconds.

        Raises:
            BusDown: The connection is lost; messages may have been missed.
        """

    def close(self) -> None:
        """Hear no more. Raises nothing."""


class Transport(Protocol):
    """A bus. Thread-safe.

    Every method may block for some seconds, never for ever, and raises ``BusDown``
    where the bus cannot be reached. After that it can be used again.
    """

    def subscribe(self) -> Subscription:
        """Listen from now on: what is published after this returned is heard."""

    def stop(self, run_id: str, marker: str, reply: str) -> int:
        """Post a stop for a run, unless one is posted, and publish the one that is.

        With it is posted where its holders acknowledge: to who asked last.

        Args:
            run_id: Which run.
            marker: What to post.
            reply: Where holders of the run acknowledge.

        Returns:
            How many processes have been told.
        """

    def markers(self, run_ids: Sequence[str]) -> list[str | None]:
        """Return what is posted for each of these runs: its reply, and its marker."""

    def now(self) -> int:
        """Return the clock of the bus, in microseconds."""

    def claim(self, claims: Sequence[Claim]) -> list[Holder]:
        """Let the newest holder of each key be known; publish those that are new.

        Returns:
            The newest holder of each, after that.
        """

    def publish(self, message: str) -> int:
        """Tell every process that listens; returns how many those are."""

    def answer(self, reply: str, texts: Sequence[str]) -> None:
        """Leave answers for whoever asked."""

    def next_answer(self, reply: str, timeout: float) -> str | None:
        """Return the next answer; None where none came in ``timeout`` seconds."""

    def close(self) -> None:
        """Give back every connection. Raises nothing."""

    def after_fork(self) -> None:
        """Forget every connection: they are those of the parent process."""
