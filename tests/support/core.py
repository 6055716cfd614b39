"""For tests of the core: a loop that is pumped by hand, and a witness of every run."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import weakref
from typing import TYPE_CHECKING, Any, ParamSpec

from hangup.core import registry
from hangup.core.opening import open_call
from hangup.core.registry import RunObserver

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from hangup.core.cause import Cause
    from hangup.core.run import Run
    from hangup.core.scope import RunScope

P = ParamSpec("P")

_MOST_TURNS = 1_000


class _Settling:
    tasks = 0


async def settle() -> None:
    """Let everything run that can run without time passing.

    Several tasks may do so at a time: they do not wait for each other.
    """
    ready: Any = asyncio.get_running_loop()._ready  # type: ignore[attr-defined]
    _Settling.tasks += 1
    try:
        for _ in range(_MOST_TURNS):
            await asyncio.sleep(0)
            if len(ready) < _Settling.tasks:
                return
    finally:
        _Settling.tasks -= 1
    raise AssertionError(f"the loop is still busy after {_MOST_TURNS} turns")


async def for_ever() -> None:
    """Wait for what never comes."""
    await asyncio.Event().wait()


def in_loop(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Make a test of a coroutine function, run on a fresh event loop.

    What must hold after every test is checked here: no cancel is left on the task, none
    leaks into its next await, and the loop had nothing to complain about.
    """

    @functools.wraps(test)
    def call(*args: P.args, **kwargs: P.kwargs) -> None:
        complaints: list[dict[str, Any]] = []

        async def main() -> None:
            loop = asyncio.get_running_loop()
            loop.set_exception_handler(lambda _, context: complaints.append(context))
            await test(*args, **kwargs)
            task = asyncio.current_task()
            assert task is not None
            assert task.cancelling() == 0, "a cancel is left on the task"
            await settle()

        # In no context that another test may have left a run open in.
        contextvars.Context().run(asyncio.run, main())
        assert complaints == []

    return call


class Witness(RunObserver):
    """Writes down what happens to runs, as (event, run name, details...).

    Of those it saw start: what an earlier test has left may still end, on a thread or
    in a garbage collection.
    """

    def __init__(self) -> None:
        self.events: list[tuple[Any, ...]] = []
        self._seen: weakref.WeakSet[Run] = weakref.WeakSet()

    def _note(self, event: str, run: Run, *details: object) -> None:
        if run in self._seen:
            self.events.append((event, run.name, *details))

    def of(self, *names: str) -> list[tuple[Any, ...]]:
        """Return the events with one of these names, in order."""
        return [event for event in self.events if event[0] in names]

    def started(self, run: Run) -> None:
        self._seen.add(run)
        self._note("started", run)

    def abandoned(self, run: Run) -> None:
        abandonment = run.abandonment
        assert abandonment is not None
        self._note("abandoned", run, abandonment.cause.value)

    def delivered(self, run: Run) -> None:
        assert run.delivered_at is not None
        self._note("delivered", run)

    def closed(self, run: Run) -> None:
        assert run.closed_at is not None
        self._note("closed", run)

    def settled(self, run: Run, unsettled: int) -> None:
        self._note("settled", run, unsettled)

    def swallowed(self, run: Run) -> None:
        self._note("swallowed", run)

    def refused(
        self, run: Run, kind: str, cause: Cause, decision: str, model: str | None
    ) -> None:
        self._note("refused", run, kind, cause.value, decision)


@contextlib.contextmanager
def witness() -> Iterator[Witness]:
    """Watch every run of the block."""
    observer = Witness()
    registry.add_observer(observer)
    try:
        yield observer
    finally:
        registry.remove_observer(observer)


def opened(scope: RunScope) -> Run:
    """Enter a scope as another request would: in a context of its own."""
    return contextvars.Context().run(scope.__enter__)


@contextlib.contextmanager
def spending(run: Run) -> Iterator[None]:
    """Hold a spending call of ``run`` open, as the layer that watches spans does."""
    task = open_call(run)
    try:
        yield
    finally:
        run.work.call_closed(task)
