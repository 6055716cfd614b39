"""The runs of other processes: what reaches them is plugged in here, if anything is.

The bus is above this layer and beside OpenTelemetry's; both meet here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from hangup.core.cause import Cause
from hangup.core.guard import guarded

if TYPE_CHECKING:
    from collections.abc import Callable

    from hangup.core.run import Run


class Verdict(NamedTuple):
    """What another process decided about a run.

    Attributes:
        cause: Why it is to stop.
        detail: Free text, or "".
    """

    cause: Cause
    detail: str

    def binds(self, run: Run) -> bool:
        """Whether it stops this run: a newer request does where hangup may refuse."""
        return self.cause is not Cause.SUPERSEDED or run.mode.refuses


class Reach(Protocol):
    """What reaches other processes. Thread-safe."""

    @property
    def up(self) -> bool | None:
        """Whether it does at present; None while it has not been tried."""

    def verdict(self, run_id: str) -> Verdict | None:
        """Return whether the run was killed from outside. Blocks, for seconds at most.

        None also where nobody can be asked.
        """


class _Plugged:
    reach: Reach | None = None
    tokens: Callable[[Run], int | None] | None = None


def plug(reach: Reach | None) -> None:
    """Say what reaches other processes; None: nothing does."""
    _Plugged.reach = reach


def reach() -> Reach | None:
    """Return what reaches other processes, if anything is configured to."""
    return _Plugged.reach


def verdict(run_id: str) -> Verdict | None:
    """Return whether a run was killed before it came here; for adapters of queues.

    Blocks, for seconds at most; not for event loops. None without a bus, and where the
    bus cannot be reached: work goes on under its own deadline.

    Args:
        run_id: The token, 32 hex characters.
    """
    there = _Plugged.reach
    if there is None:
        return None
    found: Verdict | None = guarded(there.verdict, run_id)
    return found


def count_tokens_with(count: Callable[[Run], int | None] | None) -> None:
    """Say who knows how many tokens a run has used; None: nobody does."""
    _Plugged.tokens = count


def tokens_of(run: Run) -> int | None:
    """Return how many tokens a run has used so far; None where nobody knows."""
    count = _Plugged.tokens
    return None if count is None else guarded(count, run)
