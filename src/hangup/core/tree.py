"""What the runs of one tree share: which tasks had the stop, are shielded, are busy."""

from __future__ import annotations

import asyncio
import itertools
import threading
import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from hangup.core.current import Position
    from hangup.core.drain import DrainScope
    from hangup.core.run import Run

    Place = asyncio.Task[Any] | int | None
    """A task, the number of a thread, or none."""


def current_task() -> asyncio.Task[Any] | None:
    """Return the running task, None outside any event loop."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


def place() -> Place:
    """Return where the present code runs: the task, or where none runs the thread."""
    task = current_task()
    return threading.get_ident() if task is None else task


class Tree:
    """Thread-safe; the lock is never held while calling out."""

    __slots__ = (
        "_held",
        "_shields",
        "_signalled",
        "calls",
        "drains",
        "lock",
        "numbers",
    )

    def __init__(self) -> None:
        self.lock: threading.Lock = threading.Lock()
        self._signalled: weakref.WeakSet[asyncio.Task[Any]] = weakref.WeakSet()
        self._shields: weakref.WeakKeyDictionary[asyncio.Task[Any], int] = (
            weakref.WeakKeyDictionary()
        )
        # What is to be done to a task as soon as its last shield is gone.
        self._held: weakref.WeakKeyDictionary[
            asyncio.Task[Any], list[Callable[[], object]]
        ] = weakref.WeakKeyDictionary()
        # The open drain blocks. No lock, as for the calls below.
        self.drains: set[DrainScope] = set()
        # The open spending calls: whose each is, the task it may be stopped on, where
        # that began, and what the layer that follows calls knows it by. No lock: one
        # store and one pop are atomic, and readers copy it whole.
        self.calls: dict[
            int, tuple[Run, asyncio.Task[Any] | None, Position | None, object]
        ] = {}
        self.numbers: itertools.count[int] = itertools.count()

    # The signal: one for a task

    def signal(self, task: asyncio.Task[Any]) -> bool:
        """Note that ``task`` gets the stop; False if it has had it."""
        return not self.raised(task)

    def raised(self, task: asyncio.Task[Any]) -> bool:
        """Note that ``task`` gets the stop by exception; return whether it had it."""
        with self.lock:
            before = task in self._signalled
            self._signalled.add(task)
        return before

    def signalled(self, task: asyncio.Task[Any]) -> bool:
        """Whether ``task`` had the stop."""
        with self.lock:
            return task in self._signalled

    def forget_signal(self, task: asyncio.Task[Any]) -> None:
        """Note that the stop of ``task`` has ended at its scope: it may get another."""
        with self.lock:
            self._signalled.discard(task)

    # Shields

    def shield(self, task: asyncio.Task[Any] | None = None) -> asyncio.Task[Any] | None:
        """Hold back the stop from a task; returns what ``unshield`` wants.

        Args:
            task: Which one; None is the running one.
        """
        task = task or current_task()
        if task is not None:
            with self.lock:
                self._shields[task] = self._shields.get(task, 0) + 1
        return task

    def unshield(self, task: asyncio.Task[Any] | None) -> None:
        """Let the stop through again, and deliver one that came meanwhile."""
        if task is None:
            return
        with self.lock:
            depth = self._shields.get(task, 0) - 1
            if depth > 0:
                self._shields[task] = depth
            else:
                self._shields.pop(task, None)
        self.release(task)

    def release(self, task: asyncio.Task[Any]) -> None:
        """Deliver what was held back, unless something else still holds it.

        Call it on the loop of ``task``.
        """
        with self.lock:
            held = [] if self._holds(task) else self._held.pop(task, [])
        for stop in held:
            task.get_loop().call_soon(stop)

    def hold_back(self, task: asyncio.Task[Any], stop: Callable[[], object]) -> bool:
        """Call ``stop`` from the loop once ``task`` has no shield, nor is drained.

        Returns:
            False if nothing holds it now, and ``stop`` is yours to call.
        """
        with self.lock:
            if not self._holds(task):
                return False
            self._held.setdefault(task, []).append(stop)
        return True

    def _holds(self, task: asyncio.Task[Any]) -> bool:
        shielded = self._shields.get(task, 0) > 0
        return shielded or bool(self.drains and self.draining(task))

    # Drains

    def draining(self, reader: Place, born: DrainScope | None = None) -> bool:
        """Whether the stop of the run has come, and waits for a drain block to end.

        Args:
            reader: The task or thread whose blocks count; None for none.
            born: The block that the work in question began in.
        """
        if born is not None and born.holds:
            return True
        return reader is not None and any(
            drain.place == reader and drain.holds for drain in tuple(self.drains)
        )

    def drains_call(self, number: int) -> bool:
        """Whether the open call with this number is one that is drained."""
        _, task, born, _ = self.calls.get(number, (None, None, None, None))
        return self.draining(task, None if born is None else born.drain)

    def patience(self, seconds: float) -> float:
        """Return for how long to wait before saying that something does not stop."""
        return seconds + max((one.budget for one in tuple(self.drains)), default=0.0)

    # Open spending calls

    def open_calls(self, encloses: Callable[[Run], bool]) -> int:
        """Return how many calls of runs that ``encloses`` accepts are open."""
        return sum(encloses(run) for run, *_ in tuple(self.calls.values()))

    def running_calls(self, encloses: Callable[[Run], bool], but_on: Place) -> int:
        """Return how many of them may still be at work.

        Not those of a task that is done: some spans are never ended.

        Args:
            encloses: Whose calls count.
            but_on: A task or a thread whose calls do not.
        """
        return sum(
            encloses(run)
            and (getattr(call, "thread", 0) if task is None else task) != but_on
            and not (task is not None and task.done())
            for run, task, _, call in tuple(self.calls.values())
        )

    def calling(self, task: asyncio.Task[Any] | None) -> bool:
        """Whether a spending call is open on ``task``; None is any thread."""
        return any(caller is task for _, caller, *_ in tuple(self.calls.values()))

    def task_of(self, number: int) -> asyncio.Task[Any] | None:
        """Return the task that an open call may be stopped on, if it has one."""
        _, task, _, _ = self.calls.get(number, (None, None, None, None))
        return task

    def opened(self) -> list[object]:
        """Return every open call, as it was given to ``open_call``."""
        return [call for *_, call in tuple(self.calls.values())]

    def opened_on(self, task: asyncio.Task[Any] | None) -> list[object]:
        """Return the calls that ``task`` has open, the latest first; None: any thread.

        As they were given to ``open_call``.
        """
        opened = tuple(self.calls.values())
        return [call for _, caller, _, call in reversed(opened) if caller is task]

    def busy(self, encloses: Callable[[Run], bool]) -> list[asyncio.Task[Any]]:
        """Return the tasks with an open call of a run that ``encloses`` accepts.

        Not those that were born outside its tree: they serve others too; nor those that
        are let finish.
        """
        tasks = {
            task: None
            for run, task, born, _ in tuple(self.calls.values())
            if task is not None
            and born is not None
            and born.run is not None
            and born.run.root is run.root
            and not task.done()
            and not (born.drain is not None and born.drain.holds)
            and encloses(run)
        }
        return list(tasks)
