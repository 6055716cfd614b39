"""What is running for a run, and how it is stopped.

On abandonment the scope's task is cancelled once. When the scope has unwound, or after
250 ms, tasks of the run that have a spending call open are cancelled once each, but for
those that somebody outside the run awaits. What has not stopped after ``settle``
seconds is reported. Nothing is ever cancelled twice, and a task behind a shield gets
the signal when the shield ends.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from hangup import config
from hangup.config import Mode
from hangup.core import registry
from hangup.core.cause import Cause
from hangup.core.current import POSITION
from hangup.core.interrupt import awaited_outside, interrupt, retrieve

if TYPE_CHECKING:
    from contextvars import Context

    from hangup.core.clock import Timer
    from hangup.core.run import Run

LEFTOVERS_AFTER = 0.25
"""Seconds after which a run's other tasks are stopped though its scope still
unwinds."""

HOME_THREAD: ContextVar[int | None] = ContextVar("hangup.home_thread", default=None)
"""The thread that ``hangup.to_thread`` runs the present work on."""


def current_task() -> asyncio.Task[Any] | None:
    """Return the running task, None outside any event loop."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


class Tree:
    """What the runs of one tree share. Its lock is never held while calling out."""

    __slots__ = ("busy", "lock", "shields", "signalled")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.signalled: weakref.WeakSet[asyncio.Task[Any]] = weakref.WeakSet()
        self.shields: weakref.WeakKeyDictionary[asyncio.Task[Any], int] = (
            weakref.WeakKeyDictionary()
        )
        # Tasks with an open spending call, and the runs those calls belong to.
        self.busy: dict[asyncio.Task[Any], list[Run]] = {}


class Work:
    """The running work of one run. Thread-safe unless a method says otherwise."""

    __slots__ = (
        "_late_refusals",
        "_leftover_timer",
        "_report_timer",
        "_settled",
        "_stopping",
        "_swallowed",
        "_waiter",
        "cancels",
        "left",
        "loop",
        "open_calls",
        "run",
        "task",
        "thread_id",
        "threads",
        "tree",
    )

    def __init__(self, run: Run) -> None:
        self.run = run
        self.tree: Tree = Tree() if run.parent is None else run.parent.work.tree
        self.loop: asyncio.AbstractEventLoop | None = None
        self.task: asyncio.Task[Any] | None = None
        self.thread_id = 0
        self.left = False
        self.cancels = 0
        self.open_calls = 0
        self.threads = 0
        self._late_refusals = 0
        self._swallowed = False
        self._settled = False
        self._stopping: list[asyncio.Task[Any]] = []
        self._leftover_timer: Timer | None = None
        self._report_timer: Timer | None = None
        self._waiter: asyncio.Future[None] | None = None

    # The scope

    def enter(self) -> None:
        """Remember the task, loop and thread that own the scope."""
        self.task = current_task()
        self.loop = None if self.task is None else self.task.get_loop()
        self.thread_id = threading.get_ident()

    def leave(self) -> int:
        """Note that the scope is being left; no cancel reaches its task from here on.

        Returns:
            How many ``uncancel`` calls are owed on the scope's task.
        """
        self.left = True
        owed, self.cancels = self.cancels, 0
        return owed

    def is_home(self) -> bool:
        """Whether a ``Stop`` raised here travels to the scope of this run.

        It does on tasks born in the run and on threads it started. Elsewhere, a
        ``BaseException`` would kill a worker that serves others.
        """
        here = POSITION.get()
        if here is None or here.run is None or here.run.root is not self.run.root:
            return False
        ident = threading.get_ident()
        return ident in (self.run.root.work.thread_id, self.thread_id) or (
            HOME_THREAD.get() == ident
        )

    # Spending calls

    def call_opened(self) -> asyncio.Task[Any] | None:
        """Note a spending call that begins here; returns what ``call_closed`` wants."""
        task = current_task()
        with self.tree.lock:
            run: Run | None = self.run
            while run is not None:
                run.work.open_calls += 1
                run = run.parent
            if task is not None:
                self.tree.busy.setdefault(task, []).append(self.run)
        return task

    def call_closed(self, task: asyncio.Task[Any] | None) -> None:
        """Note that a spending call has ended, wherever that was noticed."""
        idle: list[Run] = []
        with self.tree.lock:
            run: Run | None = self.run
            while run is not None:
                run.work.open_calls -= 1
                if run.work.open_calls == 0 and run.work.left:
                    idle.append(run)
                run = run.parent
            if task is not None:
                runs = self.tree.busy.get(task)
                if runs is not None and self.run in runs:
                    runs.remove(self.run)
                    if not runs:
                        del self.tree.busy[task]
        for run in idle:
            run.work.settle_if_idle()

    def thread_changed(self, by: int) -> None:
        """Count a thread that works for the run and cannot be interrupted."""
        with self.tree.lock:
            self.threads += by
        if by < 0:
            self.settle_if_idle()

    def take_signal(self) -> bool:
        """Note that the running task gets the stop by exception.

        Returns:
            Whether it had got the stop before and swallowed it; True once per run.
        """
        task = current_task()
        if task is None:
            return False
        with self.tree.lock:
            before = task in self.tree.signalled
            self.tree.signalled.add(task)
            first = before and not self._swallowed
            self._swallowed = self._swallowed or before
        return first

    def late_refusal(self) -> int:
        """Count a refusal after the scope was left; return how many there were."""
        with self.tree.lock:
            self._late_refusals += 1
            return self._late_refusals

    # Shields

    def shield(self) -> asyncio.Task[Any] | None:
        """Hold back the stop from the running task; returns what ``unshield`` wants."""
        task = current_task()
        if task is not None:
            shields = self.tree.shields
            with self.tree.lock:
                shields[task] = shields.get(task, 0) + 1
        return task

    def unshield(self, task: asyncio.Task[Any] | None) -> None:
        """Let the stop through again, and deliver one that came meanwhile."""
        if task is None:
            return
        with self.tree.lock:
            depth = self.tree.shields.get(task, 0) - 1
            if depth > 0:
                self.tree.shields[task] = depth
            else:
                self.tree.shields.pop(task, None)
        if depth <= 0:
            run: Run | None = self.run
            while run is not None:
                if run.work.task is task and run.token.abandonment is not None:
                    run.work.abandoned()
                run = run.parent

    # Stopping

    @property
    def acts(self) -> bool:
        """Whether the abandonment stops what is in flight, and is this run's own."""
        abandonment = self.run.token.abandonment
        return (
            abandonment is not None
            and not abandonment.inherited
            and self.run.mode is not Mode.OFF
            and (self.run.mode is Mode.ENFORCE or abandonment.cause is Cause.KILLED)
        )

    def abandoned(self) -> None:
        """Begin to stop. Called on any thread, right after the abandonment."""
        if not self.acts or self.left:
            return
        if self.loop is None:
            self._arm_report()
            return
        try:
            self.loop.call_soon_threadsafe(self._stop_scope)
        except RuntimeError:  # the loop is closed: nothing of it can run any more
            self.left = True

    def _stop_scope(self) -> None:
        task = self.task
        if self.left or task is None or task.done():
            return
        abandonment = self.run.token.abandonment
        # A failed run's own task is busy telling its caller so.
        if abandonment is not None and abandonment.cause is not Cause.FAILED:
            self._interrupt(task)
        if self._leftover_timer is None:
            clock = self.run.clock
            self._leftover_timer = clock.call_at(
                clock.monotonic() + LEFTOVERS_AFTER, self.stop_leftovers
            )
        self._arm_report()

    def _arm_report(self) -> None:
        if self._report_timer is None and not self._settled:
            clock = self.run.clock
            self._report_timer = clock.call_at(
                clock.monotonic() + config.current().settle, self._report
            )

    def _interrupt(self, task: asyncio.Task[Any]) -> bool:
        """Cancel a task of this loop, unless it has had its signal or is shielded."""
        with self.tree.lock:
            if task in self.tree.signalled or self.tree.shields.get(task, 0) > 0:
                return False
            self.tree.signalled.add(task)
        counted = interrupt(task, self._outside, f"hangup: {self.run.error()}")
        if task is self.task:
            self.cancels += counted
        return True

    def stop_leftovers(self) -> None:
        """Cancel, once each, the other tasks of this run with a spending call open."""
        if not self.acts:
            return
        for task in self._leftovers():
            loop = task.get_loop()
            if loop is self.loop:
                self._stop_leftover(task)
            else:
                loop.call_soon_threadsafe(self._stop_leftover, task)

    def _leftovers(self) -> list[asyncio.Task[Any]]:
        with self.tree.lock:
            return [
                task
                for task, runs in self.tree.busy.items()
                if task is not self.task
                and not task.done()
                and any(self.encloses(run) for run in runs)
            ]

    def _stop_leftover(self, task: asyncio.Task[Any]) -> None:
        # cancelling(): somebody (a task group, gather) is stopping it already; a second
        # cancel would cut its clean-up.
        if task.done() or awaited_outside(task, self._outside):
            return
        if task.cancelling() == 0 and not self._interrupt(task):
            return
        if task not in self._stopping:
            self._stopping.append(task)
            task.add_done_callback(retrieve)
            task.add_done_callback(self._leftover_done)

    def _leftover_done(self, task: asyncio.Task[Any]) -> None:
        self._stopping.remove(task)
        self.settle_if_idle()

    def encloses(self, run: Run | None) -> bool:
        """Whether ``run`` is this run or one below it."""
        while run is not None:
            if run is self.run:
                return True
            run = run.parent
        return False

    def _outside(self, context: Context) -> bool:
        here = context.get(POSITION)
        return here is None or here.run is None or here.run.root is not self.run.root

    # Settling

    def settle_if_idle(self) -> None:
        """Report the run as settled if it is abandoned and nothing of it runs."""
        abandonment = self.run.token.abandonment
        if abandonment is None or abandonment.inherited or not self.left:
            return
        if self.open_calls == 0 and self.threads == 0 and not self._stopping:
            self._settle(0)

    def _report(self) -> None:
        """Give up waiting: say how much did not stop."""
        with self.tree.lock:
            busy = sum(
                not task.done() and any(self.encloses(run) for run in runs)
                for task, runs in self.tree.busy.items()
            )
        stuck = max(busy, len(self._stopping)) + self.threads
        if not self.left and (self.task is None or self.task not in self.tree.busy):
            stuck += 1
        self._settle(stuck)

    def _settle(self, unsettled: int) -> None:
        with self.tree.lock:
            if self._settled:
                return
            self._settled = True
        for timer in (self._leftover_timer, self._report_timer):
            if timer is not None:
                timer.cancel()
        registry.notify("settled", self.run, unsettled)
        waiter, loop = self._waiter, self.loop
        if waiter is not None and loop is not None:
            loop.call_soon_threadsafe(_wake, waiter)

    async def settled(self) -> None:
        """Wait until the run has settled, or until what did not was reported."""
        self.stop_leftovers()
        self.settle_if_idle()
        if self._settled or self.loop is None or not self.acts:
            return
        self._arm_report()
        self._waiter = self.loop.create_future()
        await self._waiter


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
