"""What is running for a run, and how it is stopped.

On abandonment the scope's task is cancelled once. When the scope has unwound, or after
250 ms, tasks of the run that have a spending call open are cancelled once each, but for
those that somebody outside the run awaits. What has not stopped after ``settle``
seconds is reported. Nothing is ever cancelled twice, and a task behind a shield gets
the signal when the shield ends.
"""

from __future__ import annotations

import contextlib
import threading
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any

from hangup import config
from hangup.config import Mode
from hangup.core import levels, registry, spins
from hangup.core.alarm import Alarm
from hangup.core.cause import Cause
from hangup.core.consumers import AGAIN_AFTER, spared
from hangup.core.current import POSITION, seen
from hangup.core.interrupt import awaited_outside, interrupt, retrieve
from hangup.core.tree import Tree, current_task
from hangup.core.unwind import message_of

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterator
    from contextvars import Context

    from hangup.core.generators import Hold
    from hangup.core.run import Run

LEFTOVERS_AFTER = 0.25
"""Seconds its scope may take to unwind before a run's other tasks are stopped."""

HOME_THREAD: ContextVar[int | None] = ContextVar("hangup.home_thread", default=None)
"""The thread that ``hangup.to_thread`` runs the present work on."""


class Work:
    """The running work of one run. Thread-safe unless a method says otherwise."""

    __slots__ = (
        "_late_refusals",
        "_leftover_timer",
        "_report_timer",
        "_settled",
        "_stopping",
        "_swallowed",
        "_told",
        "_waiter",
        "cancels",
        "hold",
        "left",
        "level",
        "loop",
        "order",
        "run",
        "task",
        "thread_id",
        "threads",
        "tree",
    )

    def __init__(self, run: Run) -> None:
        self.run: Run = run
        self.tree: Tree = Tree() if run.parent is None else run.parent.work.tree
        self.loop: asyncio.AbstractEventLoop | None = None
        self.task: asyncio.Task[Any] | None = None
        self.level: Any = None
        self.thread_id: int = 0
        self.hold: Hold | None = None
        self.left: bool = False
        self.cancels: int = 0
        self.threads: int = 0
        self._late_refusals = 0
        self._swallowed = False
        self._settled = False
        self._told = False  # observers know of the abandonment
        self._stopping: list[asyncio.Task[Any]] = []
        self.order: levels.Order = levels.Order()
        self._leftover_timer = Alarm()
        self._report_timer = Alarm()
        self._waiter: asyncio.Future[None] | None = None

    # The scope

    def enter(self) -> None:
        """Remember the task, loop and thread that own the scope."""
        self.task = current_task()
        self.loop = None if self.task is None else self.task.get_loop()
        self.level = levels.scope_of(self.task)
        self.thread_id = threading.get_ident()

    def leave(self) -> int:
        """Note that the scope is being left; no cancel reaches its task from here on.

        Returns:
            How many ``uncancel`` calls are owed on the scope's task.
        """
        self.left = True
        owed, self.cancels = self.cancels, 0
        return owed

    def release(self) -> None:
        """Note that a stop of this run's own has ended here, at its scope.

        One of a run around it that came meanwhile was held back, as every task gets one
        signal at a time; now it is due.
        """
        task, abandonment = self.task, self.run.token.abandonment
        if task is None or abandonment is None or abandonment.inherited:
            return
        above = list(self._above(task))
        if any(work.cancels for work in above):
            return  # the signal it had was that of a run around this one
        self.tree.forget_signal(task)
        for work in above:
            work.abandoned()

    def _above(self, task: asyncio.Task[Any]) -> Iterator[Work]:
        run = self.run.parent
        while run is not None:
            if run.work.task is task:
                yield run.work
            run = run.parent

    def is_home(self) -> bool:
        """Whether a ``Stop`` raised here travels to the scope of this run.

        It does on tasks born in the run and on threads it started. Elsewhere, a
        ``BaseException`` would kill a worker that serves others.
        """
        here = seen(POSITION.get())
        if here is None or here.run is None or here.run.root is not self.run.root:
            return False
        ident = threading.get_ident()
        return ident in (self.run.root.work.thread_id, self.thread_id) or (
            HOME_THREAD.get() == ident
        )

    # Spending calls

    def call_closed(self, number: int) -> None:
        """Note that a spending call has ended, wherever that was noticed."""
        self.tree.calls.pop(number, None)
        run: Run | None = self.run
        while run is not None:
            if run.work.left:
                run.work.settle_if_idle()
            run = run.parent

    @property
    def open_calls(self) -> int:
        """How many spending calls are open, of this run and of those below it."""
        return self.tree.open_calls(self.encloses)

    def thread_changed(self, by: int) -> None:
        """Count a thread that works for the run and cannot be interrupted."""
        works: list[Work] = []
        with self.tree.lock:
            run: Run | None = self.run
            while run is not None:
                work, run = run.work, run.parent
                work.threads += by
                works.append(work)
        for work in works:
            work.settle_if_idle()

    def take_signal(self) -> bool:
        """Note that the running task gets the stop by exception.

        Returns:
            Whether it had got the stop before and swallowed it; True once per run.
        """
        task = current_task()
        if task is None:
            return False
        if not self.tree.raised(task):
            # It may end with the stop and nobody to await it: not worth a log line.
            task.add_done_callback(retrieve)
            return False
        before, self._swallowed = self._swallowed, True
        return not before

    def late_refusal(self) -> int:
        """Count a refusal after the scope was left; return how many there were."""
        with self.tree.lock:
            self._late_refusals += 1
            return self._late_refusals

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
        """Begin to stop. Called on any thread, once observers know why."""
        self._told = True
        if self.run.closed_at is not None:
            self.settle_if_idle()
        if not self.acts or self.left:
            return
        if self.loop is None:
            self.settle_later()  # a thread is not stopped, a loop that runs in it is
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
        if (
            abandonment is not None
            and abandonment.cause is not Cause.FAILED
            and not self.tree.hold_back(task, self._stop_scope)
        ):
            self._interrupt(task)
        # What was woken has its turn before this: the stop itself is not kept waiting.
        task.get_loop().call_soon(self._see_it_through)

    def _see_it_through(self) -> None:
        """See to what does not stop. Does little where it has, in its own turn."""
        if self._settled:
            return
        spins.watch(self.outside)
        clock = self.run.clock
        at = clock.monotonic() + LEFTOVERS_AFTER
        self._leftover_timer.arm(clock.call_at, at, self.stop_leftovers)
        self._arm_report()

    def _arm_report(self) -> None:
        clock = self.run.clock
        at = clock.monotonic() + self.tree.patience(config.current().settle)
        self._report_timer.arm(clock.call_at, at, self._report)

    def _interrupt(self, task: asyncio.Task[Any]) -> bool:
        """Cancel a task of this loop, unless it has had its signal; see ``levels``."""
        left = self.left and task is self.task
        lent = self.hold is not None and self.hold.lends(task)
        if left or task.done() or self.tree.signalled(task) or (lent and self._settled):
            return False
        inner = [] if lent else levels.innermost(task, self.level)
        if inner:
            levels.calm(task, self.level)
            for one in self.order.behind(inner, task, self._interrupt):
                if not self.tree.hold_back(one, partial(self._interrupt, one)):
                    self._interrupt(one)
            return True
        if lent or levels.unready(task, self.level):
            task.get_loop().call_later(AGAIN_AFTER, self._interrupt, task)
            return True
        if not self.tree.signal(task):
            return False
        counted = interrupt(task, self.outside, message_of(self.run))
        if task is self.task:
            self.cancels += counted
        return True

    def stop_leftovers(self) -> None:
        """Cancel, once each, the other tasks of this run with a spending call open."""
        if not self.acts:
            return
        running = current_task()
        if self.task is not None and not self.left:
            levels.calm(self.task, self.level)
        for task in self._leftovers():
            loop = task.get_loop()
            if loop is self.loop and task is not running:
                self._stop_leftover(task)
            else:
                with contextlib.suppress(RuntimeError):  # the loop is closed
                    loop.call_soon_threadsafe(self._stop_leftover, task)

    def _leftovers(self) -> list[asyncio.Task[Any]]:
        return [task for task in self.tree.busy(self.encloses) if task is not self.task]

    def _stop_leftover(self, task: asyncio.Task[Any]) -> None:
        # cancelling(): somebody (a task group, gather) is stopping it already; a second
        # cancel would cut its clean-up.
        if task.done() or awaited_outside(task, self.outside) or spared(task, self.run):
            return
        if task.cancelling() == 0 and (
            self.tree.hold_back(task, partial(self._stop_leftover, task))
            or not self._interrupt(task)
        ):
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

    def outside(self, context: Context) -> bool:
        """Whether what runs in ``context`` is no work of this run."""
        here = context.get(POSITION)
        return here is None or not self.encloses(here.run)

    # Settling

    def settle_if_idle(self) -> None:
        """Report the run as settled if it is abandoned and nothing of it runs."""
        abandonment = self.run.token.abandonment
        if not (self.left and self._told and abandonment) or abandonment.inherited:
            return
        if not (self._calling() or self.threads or self._stopping):
            self._settle(0)

    def _calling(self) -> int:
        # Not what is open where the scope was: that has left, and a stream it dropped
        # half-way may be ended by nobody.
        return self.tree.running_calls(self.encloses, self.task or self.thread_id)

    def _report(self) -> None:
        """Give up waiting: say how much did not stop."""
        busy = self.tree.busy(self.encloses)
        stuck = max(len(busy), len(self._stopping)) + self.threads
        stuck += not self.left and self.task not in busy
        # Else one, if a call is open on a task which serves others too.
        self._settle(stuck or min(1, self._calling()))

    def _settle(self, unsettled: int) -> None:
        with self.tree.lock:
            if self._settled:
                return
            self._settled = True
            waiter, loop = self._waiter, self.loop
        self._leftover_timer.stop()
        self._report_timer.stop()
        if loop is not None and not unsettled:
            spins.forget(loop, self.outside)
        registry.notify("settled", self.run, unsettled)
        if waiter is not None and loop is not None:
            with contextlib.suppress(RuntimeError):  # closed: nobody waits any more
                loop.call_soon_threadsafe(_wake, waiter)

    def settle_later(self) -> None:
        """Stop what is left of an abandoned run, and see that its end is reported."""
        self.stop_leftovers()
        self.settle_if_idle()
        if self.acts:
            self._arm_report()

    async def settled(self) -> None:
        """Wait until the run has settled, or until what did not was reported."""
        self.settle_later()
        if self.loop is None or not self.acts:
            return
        with self.tree.lock:
            if self._settled:
                return
            waiter = self._waiter = self.loop.create_future()
        await waiter


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
