"""The ledger of one run: what its calls spent, kept until the run's fate is known.

T0 may be noticed late and a call may end long after its run closed, so ended calls
are kept as intervals until the run is abandoned, delivered or closed. Then each is
split at that moment and posted, each portion exactly once: what is posted always sums
to what the calls used.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from typing import TYPE_CHECKING

from hangup.spend.fate import Fate
from hangup.spend.posting import (
    Call,
    Decision,
    Fold,
    Posting,
    Tally,
    Total,
    post_call,
    post_fold,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    Folds = Iterable[tuple[tuple[str, str, bool], Fold]]

__all__ = ["Ledger", "Posting", "Total"]

_FATES = tuple(Fate)
_NO_CAUSE = "none"
_OTHER_MODEL = "other"
# Kinds times models that one run keeps apart in its folds; models are text from
# outside, and a ledger must stay bounded whatever they are.
_MOST_FOLDS = 256


class Ledger:
    """Collects the calls of one run and posts what they spent, by fate.

    Thread-safe, and safe against finalisers that close it or end its calls while they
    interrupt one of its own methods. ``post`` is called outside the lock, possibly on
    several threads at once; it must not raise. Times are seconds on one monotonic
    clock.

    The first of :meth:`abandon`, :meth:`deliver` and :meth:`close` decides, for ever.
    No method raises.

    Args:
        post: Receives every portion, exactly once; those of one moment together, and
            once the fate is known also where there are none.
        capacity: How many ended calls are kept apart. Older ones are folded per kind
            and model into one interval: its totals stay exact, and a T0 inside the
            interval divides them in proportion (basis estimated).
    """

    __slots__ = (
        "_busy",
        "_capacity",
        "_decision",
        "_ended",
        "_folds",
        "_heir",
        "_lock",
        "_post",
        "_tallies",
        "_untallied",
    )

    def __init__(
        self, post: Callable[[list[Posting]], None], *, capacity: int = 512
    ) -> None:
        self._post = post
        self._capacity = max(0, capacity)
        self._decision: Decision | None = None
        self._heir: Ledger | None = None
        self._ended: deque[Call] = deque()
        self._folds: dict[tuple[str, str, bool], Fold] = {}
        self._tallies = {fate: Tally() for fate in _FATES}
        self._untallied: deque[Posting] = deque()
        # Reentrant: a garbage collection inside one of these methods may run the
        # finaliser of a run or of a stream, and that closes this ledger or ends a
        # call on the same thread. While sums are under way (busy) such a visitor only
        # leaves its call or its decision; the method it interrupted does the rest.
        self._lock = threading.RLock()
        self._busy = False

    @property
    def decided(self) -> bool:
        """Whether the fate is known, or another ledger has taken the books over."""
        return self._decision is not None or self._heir is not None

    def totals(self) -> dict[Fate, Total]:
        """Return what has been posted so far, for every fate."""
        with self._lock:
            return {fate: tally.total() for fate, tally in self._tallies.items()}

    def tokens_so_far(self) -> int:
        """Return the tokens of every call that has ended, whatever their fate."""
        with self._lock:
            tallies = [(one.input, one.output) for one in self._tallies.values()]
            folds = [(one.input, one.output) for one in self._folds.values()]
            ended = [usage for *_, usage, _, _, _ in self._ended if usage is not None]
        return sum(map(sum, tallies + folds)) + sum(usage.total for usage in ended)

    def enter(self, call: Call) -> None:
        """Keep a call that has ended, or post it where the fate is known."""
        with self._lock:
            heir, decision = self._heir, self._decision
            calls: Iterable[Call] = (call,)
            folds: Folds = ()
            if heir is None and decision is None:
                self._ended.append(call)
                if len(self._ended) <= self._capacity or self._busy:
                    return
                self._fold_oldest()
                decision = self._decision
                if decision is None:
                    return
                # A finaliser decided in the middle of the fold and left the rest.
                calls, folds = self._take()
        if heir is not None:
            heir.enter(call)
        elif decision is not None:
            self._publish(decision, calls, folds)

    def abandon(self, t0: float, cause: str) -> None:
        """Post what ended: sunk before ``t0``, wasted after it.

        Calls that end later are posted when they are entered.

        Args:
            t0: When the cause took effect, which may be long before it was noticed.
            cause: A value of :class:`hangup.core.cause.Cause`.
        """
        self._decide(Decision(t0, Fate.SUNK, Fate.WASTED, str(cause)))

    def deliver(self, at: float) -> None:
        """Post what ended: delivered before ``at``, background work after it.

        Calls that end later are posted when they are entered.
        """
        self._decide(Decision(at, Fate.DELIVERED, Fate.AFTER, _NO_CAUSE))

    def close(self, at: float = math.inf) -> None:
        """End a run that was neither abandoned nor delivered, as delivered.

        Idempotent, and a no-op when the fate is known. Calls that end later are posted
        when they are entered: what they spend after ``at`` is background work; by
        default all of it is delivered.
        """
        self._decide(Decision(at, Fate.DELIVERED, Fate.AFTER, _NO_CAUSE))

    def absorb(self, child: Ledger) -> None:
        """Take over the books of a child run that shares this run's fate.

        What the child's calls spent, also those that end later, is posted as calls of
        this ledger from here on. A child whose own fate is known keeps its books.
        """
        with child._lock:
            if child._decision is not None or child._heir is not None:
                return
            child._heir = self
            calls, folds = child._take()
        for (kind, model, priced), fold in folds:
            self._enter_fold(kind, model, fold, priced=priced)
        for call in calls:
            self.enter(call)

    def _enter_fold(self, kind: str, model: str, fold: Fold, *, priced: bool) -> None:
        with self._lock:
            heir, decision = self._heir, self._decision
            if heir is None and decision is None:
                key = (kind, model, priced)
                if key not in self._folds and len(self._folds) >= _MOST_FOLDS:
                    key = (kind, _OTHER_MODEL, priced)
                self._folds.setdefault(key, Fold()).merge(fold)
                return
        if heir is not None:
            heir._enter_fold(kind, model, fold, priced=priced)  # noqa: SLF001  as above
        elif decision is not None:
            self._publish(decision, (), (((kind, model, priced), fold),))

    def _decide(self, decision: Decision) -> None:
        with self._lock:
            if self._decision is not None:
                return
            self._decision = decision
            if self._busy:
                return  # we are a finaliser inside end(), which publishes
            calls, folds = self._take()
        self._publish(decision, calls, folds)

    def _take(self) -> tuple[Iterable[Call], Folds]:
        """Take over all that is kept. The lock is held."""
        calls, self._ended = self._ended, deque()
        folds, self._folds = self._folds, {}
        return calls, folds.items()

    def _fold_oldest(self) -> None:
        """Fold calls beyond the capacity. The lock is held."""
        self._busy = True
        try:
            while len(self._ended) > self._capacity:
                call = self._ended.popleft()
                # Priced and unpriced calls never share a fold: no price is not 0.
                kind, model, priced = call[0], call[1], call[6] is not None
                key = (kind, model, priced)
                fold = self._folds.get(key)
                if fold is None:
                    if len(self._folds) >= _MOST_FOLDS:
                        key = (kind, _OTHER_MODEL, priced)
                    fold = self._folds.setdefault(key, Fold())
                fold.add(call)
        finally:
            self._busy = False

    def _publish(
        self,
        decision: Decision,
        calls: Iterable[Call],
        folds: Folds,
    ) -> None:
        """Split, add up and post. The lock is not held."""
        postings: list[Posting] = []
        for (kind, model, _), fold in folds:
            postings += post_fold(kind, model, fold, decision)
        for call in calls:
            postings += post_call(call, decision)
        with self._lock:
            self._untallied.extend(postings)
            if not self._busy:
                self._tally()
        self._post(postings)

    def _tally(self) -> None:
        """Add up what was published. The lock is held."""
        self._busy = True
        try:
            while self._untallied:
                posting = self._untallied.popleft()
                self._tallies[posting.fate].add(posting)
        finally:
            self._busy = False
