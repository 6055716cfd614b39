"""The runs of this process that the bus asks about."""

from __future__ import annotations

import threading
import time
import weakref
from typing import TYPE_CHECKING, NamedTuple

from hangup.bus.base import Claim
from hangup.bus.messages import key_name
from hangup.core import registry, remote
from hangup.core.cause import Cause

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from hangup.bus.base import Holder
    from hangup.core.run import Run


class Row(NamedTuple):
    """A live run, as it is listed.

    Attributes:
        id: The token.
        name: The declared name, or the route template.
        tenant: Whom it is for, or "".
        age: Seconds since it began.
        left: Seconds left, negative once past; None without a deadline.
        tokens: Tokens used so far; None where nobody counts.
        state: running, stopping or delivered.
        mode: observe, refuse or enforce.
        cause: Why it is stopping; None where it is not.
        joined: Whether another process opened it.
    """

    id: str
    name: str
    tenant: str
    age: float
    left: float | None
    tokens: int | None
    state: str
    mode: str
    cause: str | None
    joined: bool


def row_of(run: Run) -> Row:
    """Return a live run as it is listed."""
    now = run.clock.monotonic()
    abandonment = run.token.abandonment
    return Row(
        run.id,
        run.name,
        run.tenant,
        round(now - run.started_at, 3),
        round(run.deadline.at - now, 3) if run.deadline.is_set else None,
        remote.tokens_of(run),
        run.state,
        run.mode.value,
        None if abandonment is None else abandonment.cause.value,
        run.joined,
    )


class _Held:
    """A supersede key that a run of this process holds, newest in this process."""

    __slots__ = ("newest", "opened_at", "rank", "run")

    def __init__(self, run: Run) -> None:
        self.run = weakref.ref(run)
        self.opened_at = time.monotonic()
        self.rank = 0  # until the bus knows of it
        self.newest = 0  # the highest that another run was heard to have


class Live(registry.RunObserver):
    """An index of the live runs, and of what the bus has yet to hear. Thread-safe.

    Holds runs weakly, and is never larger than what lives: whatever the bus missed is
    found here again.

    Attributes:
        on_change: Called when the bus has something to hear; must not block.
    """

    def __init__(self) -> None:
        self.on_change: Callable[[], None] = _nothing
        self.after_fork()

    def after_fork(self) -> None:
        """Begin anew, with the runs that live here."""
        # Reentrant: a garbage collection may close a run in the middle of these.
        self._lock = threading.RLock()
        self._runs: weakref.WeakValueDictionary[str, Run] = (
            weakref.WeakValueDictionary()
        )
        # Further roots with an id: a process that calls itself.
        self._twins: weakref.WeakSet[Run] = weakref.WeakSet()
        self._held: dict[str, _Held] = {}
        self._unclaimed: set[str] = set()
        self._unread: set[str] = set()
        # Nobody listens in a child process until it has a run, or its metrics are read;
        # nor where no thread can be started.
        self._asleep = True
        for run in registry.live_runs():
            self.started(run)

    def tell_of_next(self) -> None:
        """Call ``on_change`` with the next run, whatever it is: nobody listens yet."""
        self._asleep = True

    # What happens to runs

    def started(self, run: Run) -> None:
        """Index a root; note what has to be asked about the run."""
        changed = False
        with self._lock:
            if run.parent is None:
                self._index(run)
                changed, self._asleep = self._asleep, False
                if run.joined:
                    # It may have been stopped while it was on its way here.
                    self._unread.add(run.id)
                    changed = True
            if run.supersede_key is not None:
                changed |= self._hold(run, key_name(run.supersede_key))
        if changed:
            self.on_change()

    def closed(self, run: Run) -> None:
        """Forget the run."""
        with self._lock:
            if run.parent is None:
                if self._runs.get(run.id) is run:
                    del self._runs[run.id]
                    for twin in [one for one in self._twins if one.id == run.id]:
                        self._twins.discard(twin)
                        self._index(twin)
                else:
                    self._twins.discard(run)
                if run.id not in self._runs:
                    self._unread.discard(run.id)
            if run.supersede_key is not None:
                key = key_name(run.supersede_key)
                held = self._held.get(key)
                if held is not None and held.run() in (run, None):
                    self._drop(key)

    def _index(self, run: Run) -> None:
        first = self._runs.setdefault(run.id, run)
        if first is not run:
            self._twins.add(run)

    def _hold(self, run: Run, key: str) -> bool:
        held = self._held.get(key)
        older = None if held is None else held.run()
        if older is not None and older.work.encloses(run):
            return False  # there the key stays with the outer one
        self._held[key] = _Held(run)
        self._unclaimed.add(key)
        return True

    def _drop(self, key: str) -> None:
        self._held.pop(key, None)
        self._unclaimed.discard(key)

    # What the bus asks

    def holding(self, run_id: str) -> list[Run]:
        """Return the live roots with this id: one, but where a process calls itself."""
        first = self._runs.get(run_id)
        if first is None:
            return []
        if not self._twins:
            return [first]
        with self._lock:
            return [first, *(one for one in self._twins if one.id == run_id)]

    def roots(self, prefix: str = "") -> list[Run]:
        """Return the live roots whose id begins so, the oldest first."""
        with self._lock:
            # Not the values: a run may go meanwhile.
            refs = self._runs.valuerefs()
            runs = [run for ref in refs if (run := ref()) is not None]
            runs += self._twins
        found = [run for run in runs if run.id.startswith(prefix)]
        return sorted(found, key=lambda run: run.started_at)

    def take_unread(self) -> list[str]:
        """Return, once, the ids of runs that may have been stopped before they came."""
        with self._lock:
            unread, self._unread = self._unread, set()
        return list(unread)

    def take_claims(
        self, rank_of: Callable[[float], int], *, all_of_them: bool = False
    ) -> list[Claim]:
        """Return, once, the keys that the bus has not heard of; or all that are held.

        Forgets those whose run was garbage collected.

        Args:
            rank_of: Puts an instant of ``time.monotonic`` on the clock of the bus.
            all_of_them: Also those that it has heard of.
        """
        claims = []
        with self._lock:
            keys = list(self._held if all_of_them else self._unclaimed)
            self._unclaimed.clear()
            for key in keys:
                held = self._held.get(key)
                run = None if held is None else held.run()
                if held is None or run is None:
                    self._drop(key)
                    continue
                rank = held.rank or rank_of(held.opened_at)
                claims.append(Claim(key, run.id, rank))
        return claims

    # What the bus says

    def claimed(self, claims: Iterable[Claim], holders: Iterable[Holder]) -> None:
        """Note who is the newest; stop runs of this process that are not."""
        for claim, holder in zip(claims, holders, strict=True):
            superseded = None
            with self._lock:
                held = self._held.get(claim.key)
                run = None if held is None else held.run()
                if held is None or run is None or run.id != claim.run_id:
                    continue
                if holder.run_id != run.id:
                    superseded = run
                else:
                    held.rank = holder.rank
                    if held.newest > held.rank:
                        superseded = run
            if superseded is not None:
                _supersede(superseded)

    def heard(self, key: str, holder: Holder) -> None:
        """Hear that a run is the newest holder of a key, and stop an older one here."""
        with self._lock:
            held = self._held.get(key)
            run = None if held is None else held.run()
            if held is None or run is None or run.id == holder.run_id:
                return
            held.newest = max(held.newest, holder.rank)
            # Without a rank the answer to its claim is under way, and will tell.
            if held.rank == 0 or held.rank >= held.newest:
                return
        _supersede(run)


def _supersede(run: Run) -> None:
    # In observe mode a newer request is only a would-stop (never called waste).
    if run.mode.refuses:
        detail = f"a newer run in another process holds {run.supersede_key!r}"
        run.cancel(Cause.SUPERSEDED, detail)


def _nothing() -> None:
    """Nobody listens yet."""
