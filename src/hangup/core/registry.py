"""The runs of this process, who watches them, and who holds which supersede key.

Thread-safe. Holds live runs weakly: a run that nobody closes goes when its context
goes.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import TYPE_CHECKING

from hangup.core.cause import Cause
from hangup.core.guard import fault, guarded

if TYPE_CHECKING:
    from collections.abc import Callable

    from hangup.config import Mode
    from hangup.core.run import Run


class RunObserver:
    """What can be learnt of runs; override what you need.

    Methods are called outside locks, on the thread where it happened, and must not
    block. A run that a server opened is unknown to observers until it leaves latent.
    Child runs are reported too; tell them by ``run.parent``.
    """

    def declared(self, name: str, mode: Mode) -> None:
        """Runs of this name will come, in ``mode`` at most."""

    def started(self, run: Run) -> None:
        """The run makes its first spending call, or was opened in code."""

    def abandoned(self, run: Run) -> None:
        """``run.abandonment`` is set; in a tree, children are reported first."""

    def delivered(self, run: Run) -> None:
        """The caller has the result; ``run.delivered_at`` is set."""

    def closed(self, run: Run) -> None:
        """The scope has been left. Always after abandoned or delivered for a root."""

    def settled(self, run: Run, unsettled: int) -> None:
        """An abandoned run has stopped, but for ``unsettled`` pieces of work."""

    def swallowed(self, run: Run) -> None:
        """A task that had got the stop goes on and wants to start a spending call."""

    def refused(
        self, run: Run, kind: str, cause: Cause, decision: str, model: str | None
    ) -> None:
        """A spending call of ``kind`` was, or in observe mode would be, refused."""

    def lowered(self, run: Run) -> None:
        """The mode of a run that has started is less than it was."""


def _hears(observer: RunObserver, event: str) -> bool:
    """Whether an observer has something to do at an event."""
    told = getattr(observer, event)
    return getattr(told, "__func__", None) is not getattr(RunObserver, event)


# Fewer than run names that get a label: some places stay for those that come by.
_MOST_DECLARED = 40


class _Registry:
    def __init__(self) -> None:
        # Reentrant: a garbage collection may close a run in the middle of these.
        self.lock = threading.RLock()
        self.observers: tuple[RunObserver, ...] = ()
        # Of each event those who want to hear of it: a stop waits for them all.
        self.hear: dict[str, tuple[RunObserver, ...]] = {}
        self.live: weakref.WeakSet[Run] = weakref.WeakSet()
        # Closed and abandoned: for a while they go on refusing what is left of them.
        self.leftovers: weakref.WeakSet[Run] = weakref.WeakSet()
        self.adjust: Callable[[Run], None] | None = None
        self.holders: dict[str, weakref.ref[Run]] = {}
        self.declared: dict[tuple[str, Mode], None] = {}

    def observe(self, observers: tuple[RunObserver, ...]) -> None:
        """Replace the observers. Under the lock."""
        self.observers = observers
        self.hear = {
            event: tuple(one for one in observers if _hears(one, event))
            for event, default in vars(RunObserver).items()
            if callable(default)
        }

    def after_fork(self) -> None:
        """Begin anew: the runs and the lock of the parent process mean nothing here."""
        self.lock = threading.RLock()
        self.live = weakref.WeakSet()
        self.leftovers = weakref.WeakSet()
        self.holders = {}


_registry = _Registry()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_registry.after_fork)


def add_observer(observer: RunObserver) -> None:
    """Report every run of the process to ``observer``. Idempotent."""
    with _registry.lock:
        if observer not in _registry.observers:
            _registry.observe((*_registry.observers, observer))


def remove_observer(observer: RunObserver) -> None:
    """Stop reporting to ``observer``. Idempotent."""
    with _registry.lock:
        _registry.observe(
            tuple(one for one in _registry.observers if one is not observer)
        )


def declare(name: str, mode: Mode) -> None:
    """Announce runs by the name they will have, so that their series exist at once.

    For whoever knows before the first one: a decorator, a server's routes. Bounded, and
    names beyond that are seen when their first run starts.
    """
    key = (name, mode)
    if key in _registry.declared or len(_registry.declared) >= _MOST_DECLARED:
        return
    _registry.declared[key] = None
    for observer in _registry.hear.get("declared", ()):
        guarded(observer.declared, name, mode)


def declared() -> tuple[tuple[str, Mode], ...]:
    """Return every name that was declared, with the mode at most."""
    return tuple(_registry.declared)


def notify(event: str, run: Run, *details: object) -> None:
    """Tell every observer; their faults never reach the run."""
    for observer in _registry.hear.get(event, ()):
        try:  # as ``guarded`` does, without a frame for each
            getattr(observer, event)(run, *details)
        except Exception as error:  # noqa: BLE001  any fault of theirs
            fault(f"{type(observer).__qualname__}.{event}", error)


def add(run: Run) -> None:
    """Enter a run that has left latent."""
    with _registry.lock:
        _registry.live.add(run)
    _adjust(run)


def remove(run: Run) -> None:
    """Forget a closed run and the supersede key it may hold."""
    with _registry.lock:
        _registry.live.discard(run)
        key = run.supersede_key
        if key is not None:
            holder = _registry.holders.get(key)
            if holder is not None and holder() in (run, None):
                del _registry.holders[key]
        abandoned = run.token.abandonment is not None
        if abandoned:
            _registry.leftovers.add(run)
    if abandoned:
        _adjust(run)


def adjust_with(adjust: Callable[[Run], None]) -> None:
    """Call ``adjust`` with every run that is entered, and each abandoned one removed.

    For the one layer that may lower a run's mode: see :mod:`hangup.core.rollout`.
    """
    _registry.adjust = adjust


def _adjust(run: Run) -> None:
    if _registry.adjust is not None:
        guarded(_registry.adjust, run)


def live_runs() -> tuple[Run, ...]:
    """Return a snapshot of the runs that have started and are not closed."""
    with _registry.lock:
        return tuple(_registry.live)


def leftover_runs() -> tuple[Run, ...]:
    """Return the abandoned runs that are closed, and that somebody still refers to."""
    with _registry.lock:
        return tuple(_registry.leftovers)


def runs_by_id(run_id: str) -> tuple[Run, ...]:
    """Return the live roots with this token: one, unless a process calls itself."""
    return tuple(run for run in live_runs() if run.id == run_id and run.parent is None)


def find_run(run_id: str) -> Run | None:
    """Return the live run with this id, None where there is none in this process.

    For a request that comes back to a run another request began: keep ``run.id`` where
    only its owner can get at it, and look it up again here. A run is found from its
    first spending call (one opened in code: from its start) until its scope is left.
    Thread-safe.

    Args:
        run_id: ``run.id``, 32 hex characters.
    """
    found = runs_by_id(run_id)
    # A process that calls itself has two: the one that somebody waits for goes first.
    return min(found, key=lambda run: run.joined, default=None)


def hold_key(run: Run, key: str) -> None:
    """Give ``run`` the supersede key; the run that held it is superseded.

    A run is never superseded by one inside it: there the key stays with the outer one.
    """
    with _registry.lock:
        holder = _registry.holders.get(key)
        older = holder() if holder is not None else None
        if older is not None and older.work.encloses(run):
            return
        _registry.holders[key] = weakref.ref(run)
    # In observe mode a newer request is only a would-stop (never called waste).
    if older is not None and older.mode.refuses:
        older.cancel(Cause.SUPERSEDED, f"a newer run holds {key!r}")


def shutdown(detail: str = "the process is shutting down") -> int:
    """Abandon every live run of the process, with cause ``shutdown``.

    For whoever learns that the process is going down and does not want its runs to
    come to their end: in ``enforce`` their work is stopped, and their callers are told
    to try again (503). Thread-safe, but not for the body of a ``signal.signal``
    handler: call it from ``loop.add_signal_handler``, or from a thread.

    Returns:
        How many runs that were.
    """
    return sum(
        run.cancel(Cause.SHUTDOWN, detail) for run in live_runs() if run.parent is None
    )
