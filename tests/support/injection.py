"""Something comes at the n-th place where a program waits, for every n.

Every task of a program is driven by a wrapper that counts its suspensions. Right after
the n-th one, with nothing else in between, a visitor is called as from outside, or an
error is thrown into that wait, as if it had failed.
"""

from __future__ import annotations

import asyncio
import contextvars
from concurrent import futures
from typing import TYPE_CHECKING, Any

from support.schedules import Choices, ScheduledLoop, Watched

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator

_MOST_POINTS = 500


class _Counted:
    """Drives a coroutine by hand, and visits one of the suspensions."""

    def __init__(self, coro: Coroutine[Any, Any, Any], injector: Injector) -> None:
        self._coro = coro
        self._injector = injector

    def __await__(self) -> Generator[Any, Any, Any]:
        coro: Any = self._coro
        value: Any = None
        error: BaseException | None = None
        while True:
            try:
                future = coro.send(value) if error is None else coro.throw(error)
            except StopIteration as done:
                return done.value
            value, error = None, self._injector.suspended()
            if error is not None:
                if future is not None:  # a bare yield lets others take their turn
                    future._asyncio_future_blocking = False
                continue
            try:
                value = yield future
            except BaseException as thrown:  # noqa: BLE001  a cancel: it goes first
                error = thrown


class Injector(ScheduledLoop):
    """A loop on which something comes at the n-th suspension.

    Args:
        at: Which suspension, from 0; None for none.
        visit: Called there.
        error: Thrown there.

    Attributes:
        points: How many there have been.
        hit: The task that was suspended there.
    """

    def __init__(
        self,
        at: int | None = None,
        visit: Callable[[], object] | None = None,
        error: BaseException | None = None,
    ) -> None:
        super().__init__(Choices())
        self.points = 0
        self.hit: asyncio.Task[Any] | None = None
        self._at = at
        self._visit = visit
        self._error = error
        self._threads = _Inline(self)
        self.set_default_executor(self._threads)

    async def threads_idle(self) -> None:
        """Wait until no thread is at work, nor will be."""
        await asyncio.gather(
            *(asyncio.wrap_future(one) for one in self._threads.pending),
            return_exceptions=True,
        )

    def suspended(self) -> BaseException | None:
        """Count; return what to throw when the program goes on here."""
        number, self.points = self.points, self.points + 1
        assert number < _MOST_POINTS, "it does not end"
        if number != self._at:
            return None
        self.hit = asyncio.current_task()
        if self._visit is not None:
            nobody = contextvars.Context()
            handle = asyncio.Handle(self._visit, (), self, nobody)
            self._ready.appendleft(handle)  # type: ignore[attr-defined]
        return self._error

    def _watched(
        self, loop: Any, coro: Coroutine[Any, Any, Any], **options: Any
    ) -> Any:
        if not self.tasks:  # the one that drives the others
            return super()._watched(loop, coro, **options)

        async def counted() -> Any:
            return await _Counted(coro, self)

        task = Watched(counted(), loop=loop, **options)
        task.add_done_callback(lambda _: coro.close())  # where it never began
        self.tasks.append(task)
        return task


class _Inline(futures.ThreadPoolExecutor):
    """Does its work on the loop, a second after it was asked to."""

    def __init__(self, loop: Injector) -> None:
        super().__init__(1)
        self._loop = loop
        self.pending: set[futures.Future[Any]] = set()

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        future: futures.Future[Any] = futures.Future()

        def work() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(fn(*args, **kwargs))
                except BaseException as error:  # noqa: BLE001  the future's
                    future.set_exception(error)

        def given_up(_: futures.Future[Any]) -> None:
            self.pending.discard(future)
            timer.cancel()

        timer = self._loop.call_later(1.0, work)
        self.pending.add(future)
        future.add_done_callback(given_up)
        return future
