"""``hangup.cleanup``: teardown with a clock of its own, behind a shield."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from hangup.core.clock import SYSTEM_CLOCK
from hangup.core.current import Position, Shield, enter, position
from hangup.core.deadline import Deadline
from hangup.core.tree import current_task
from hangup.errors import MisuseError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from hangup.core.clock import Clock, Timer
    from hangup.core.generators import Hold
    from hangup.core.run import Run


class CleanupScope:
    """Do what must be done on the way out, in ``budget`` seconds.

    The deadline that stopped a run has, by definition, no time left, so teardown gets a
    small budget of its own. Inside, spending calls are not refused,
    ``hangup.remaining`` counts the budget, and a stop of the run waits until the block
    ends. A cancel that comes from somebody else is not held back. Works outside a run
    too.

    ``async with`` interrupts a block that takes longer; ``with`` cannot, and only stops
    shielding it.

    Args:
        budget: Seconds for the block, more than zero.
        clock: What to measure on; the run's clock inside a run.

    Raises:
        ConfigError: The budget is negative or NaN.
        TimeoutError: The block took longer (``async with`` only).
    """

    def __init__(self, budget: float = 5.0, *, clock: Clock = SYSTEM_CLOCK) -> None:
        Deadline.after(budget, clock)
        self._budget = budget
        self._clock = clock
        self._run: Run | None = None
        self._leave: Callable[[], None] | None = None
        self._task: asyncio.Task[object] | None = None
        self._timer: Timer | None = None
        self._hold: Hold | None = None
        self._expired = False
        self._baseline = 0

    def _open(self) -> None:
        if self._leave is not None:
            raise MisuseError(
                "a hangup.cleanup block was entered twice; call it again for each block"
            )
        here = position()
        self._run = None if here is None else here.run
        clock = self._clock if self._run is None else self._run.clock
        deadline = Deadline.after(self._budget, clock)
        if self._run is not None:
            self._task = self._run.work.tree.shield()
        here = Position(self._run, Shield("cleanup", deadline))
        self._leave = enter(here)
        self._hold = here.hold

    def _close(self) -> None:
        if self._leave is not None:
            self._leave()
        if self._run is not None:
            self._run.work.tree.unshield(self._task)

    def __enter__(self) -> None:
        self._open()

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self._close()

    async def __aenter__(self) -> None:
        self._open()
        task = current_task()
        if task is None:
            return
        self._baseline = task.cancelling()
        clock = self._clock if self._run is None else self._run.clock

        def expire() -> None:
            if self._hold is not None and self._hold.lends(task):
                return  # the consumer of a generator has it, and is not in the block
            self._expired = True
            task.cancel("hangup: cleanup took too long")

        self._timer = clock.call_at(clock.monotonic() + self._budget, expire)

    async def __aexit__(
        self,
        _kind: type[BaseException] | None,
        error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._close()
        task = current_task()
        if not self._expired or task is None:
            return
        outside = task.uncancel() > self._baseline
        if isinstance(error, asyncio.CancelledError) and not outside:
            where = "" if self._run is None else f" of {self._run!r}"
            raise TimeoutError(
                f"cleanup{where} took longer than its {self._budget:g} s; give it more "
                "with hangup.cleanup(budget=...) or do less in it"
            ) from error


class Detached:
    """Leave the run for the body: what is started inside outlives it on purpose.

    For background jobs and for workers that are created lazily inside somebody's
    request and serve everybody. Nothing inside is refused, stopped, or booked on the
    run.
    """

    def __init__(self) -> None:
        self._leaves: list[Callable[[], None]] = []

    def __enter__(self) -> None:
        self._leaves.append(enter(Position(None)))

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self._leaves.pop()()
