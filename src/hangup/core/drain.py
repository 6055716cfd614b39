"""``hangup.drain``: a call that began in time is let finish, and counted as wasted."""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
from typing import TYPE_CHECKING

from hangup.core.current import POSITION, Position, enter, position
from hangup.core.deadline import check_budget
from hangup.core.tree import place
from hangup.errors import ConfigError, MisuseError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from hangup.core.cause import Abandonment
    from hangup.core.clock import Timer
    from hangup.core.run import Run
    from hangup.core.tree import Place


class DrainScope:
    """Let the calls that are under way finish, though the run is abandoned meanwhile.

    For an answer that is worth having even if nobody waits for it any more: it fills a
    cache, or its exact usage is wanted. Until ``budget`` seconds after the run was
    abandoned the stop waits for the block to end; then it comes. What is generated
    meanwhile is counted as wasted, as it is. Unlike in ``hangup.cleanup`` no *new* call
    is let through: once the run is abandoned it is refused, and so is another attempt
    of a call that failed. A cancel that comes from somebody else is not held back: a
    framework that cuts a streamed response when its client leaves cuts a block in it.
    While the run lives, and outside a run, the block does nothing.

    ``with`` and ``async with`` do the same. A task or thread that is started inside is
    let finish with the block.

    Args:
        budget: Seconds after the abandonment, zero or more.

    Raises:
        ConfigError: The budget is negative, infinite, NaN, or no number.
        MisuseError: The block is entered twice, left in another task or thread than it
            was entered in, or left while a block opened inside it is still open.
    """

    def __init__(self, budget: float = 10.0) -> None:
        self.budget: float = check_budget(budget)
        if not math.isfinite(self.budget):
            raise ConfigError("budget", budget, "give seconds: it has to end some time")
        self.place: Place = None
        self._around: DrainScope | None = None
        self._run: Run | None = None
        self._position: Position | None = None
        self._leave: Callable[[], None] | None = None
        self._forget: Callable[[], None] | None = None
        self._timer: Timer | None = None
        self._entered = False
        self._over = False
        self._lock = threading.Lock()

    @property
    def holds(self) -> bool:
        """Whether the stop of the run has come, and has to wait here. Thread-safe."""
        if self._around is not None and self._around.holds:
            return True
        run = self._run
        abandonment = None if run is None else run.token.abandonment
        return (
            run is not None
            and abandonment is not None
            and not self._over
            and run.clock.monotonic() < abandonment.noticed_at + self.budget
        )

    def _open(self) -> None:
        if self._entered:
            raise MisuseError(
                "a hangup.drain block was entered twice; call it again for each block"
            )
        self._entered = True
        self.place = place()
        here = position()
        if here is None or here.run is None or here.run.inert:
            return
        self._run = run = here.run
        self._around = here.drain
        if run.latent:
            run.begin_spending()  # whoever drains a call says that there is one
        run.work.tree.drains.add(self)
        self._position = Position(run, here.shield, self)
        self._leave = enter(self._position)
        self._forget = run.token.on_cancel(self._abandoned)

    def _abandoned(self, abandonment: Abandonment) -> None:
        """See that it ends in time. Called on any thread."""
        run = self._run
        if run is None:  # pragma: no cover  subscribed with a run
            return
        at = abandonment.noticed_at + self.budget
        timer = run.clock.call_at(at, self._expire)
        with self._lock:
            self._timer = timer
            over = self._over
        if over:
            timer.cancel()

    def _expire(self) -> None:
        self._over = True
        self._let_through()

    def _let_through(self) -> None:
        """Deliver what was held back, on the loop that it was held back from."""
        run, task = self._run, self.place
        if run is None:
            return
        if isinstance(task, asyncio.Task):
            with contextlib.suppress(RuntimeError):  # the loop is closed
                task.get_loop().call_soon_threadsafe(run.work.tree.release, task)
        around: Run | None = run
        while around is not None:  # the one whose abandonment it is will act
            around.work.stop_leftovers()
            around = around.parent

    def _close(self) -> MisuseError | None:
        """End the block; return what to complain of, if anything."""
        if not self._entered:
            return MisuseError(
                "a hangup.drain block was left that had not been entered; use it as "
                "'async with hangup.drain():'"
            )
        misuse = self._misuse()
        if self._run is None or self._leave is None:
            return misuse
        if self._forget is not None:
            self._forget()
        with self._lock:
            self._over = True
            timer = self._timer
        if timer is not None:
            timer.cancel()
        self._leave()
        self._run.work.tree.drains.discard(self)
        if self._run.token.abandonment is not None:
            self._let_through()
        self.place = None
        return misuse

    def _misuse(self) -> MisuseError | None:
        here = place()
        if here != self.place:
            if self._position is not None and self._position.hold is not None:
                return None  # a generator that was dropped is closed by anybody
            return MisuseError(
                f"a hangup.drain block was entered in {self.place} and left in {here}; "
                "enter and leave it in the same task. Probable cause: a generator that "
                "holds it was closed elsewhere; put the block around the loop that "
                "consumes it instead"
            )
        if self._position is not None and POSITION.get() is not self._position:
            return MisuseError(
                "a hangup.drain block was left while a block opened inside it is still "
                "open; leave the inner one first: nest the 'with' blocks"
            )
        return None

    def __enter__(self) -> None:
        self._open()

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        misuse = self._close()
        if misuse is not None:
            raise misuse from error

    async def __aenter__(self) -> None:
        self._open()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.__exit__(kind, error, trace)
