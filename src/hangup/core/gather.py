"""``hangup.gather``: siblings that end together."""

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING, Any, TypeVar

from hangup import config
from hangup.core.admission import stop_here
from hangup.core.current import current_run
from hangup.core.interrupt import awaited_outside, cancel_alone, retrieve
from hangup.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence

T = TypeVar("T")


async def gather(*calls: Awaitable[T], limit: int | None = None) -> list[T]:
    """Await ``calls`` together; when one fails, cancel the others and await them too.

    Where the run around it is abandoned, the same happens; a task that somebody outside
    the run waits for too is then left to them. With a limit, a call that has not
    started when the run is abandoned or a sibling fails never starts.

    Args:
        calls: Coroutines, tasks or futures.
        limit: How many may run at a time; all at once if None.

    Returns:
        Their results, in the order given.

    Raises:
        ConfigError: The limit is less than 1.
        BaseException: The first failure, once every sibling has stopped, or
            ``HANGUP_SETTLE`` seconds later if one does not.
    """
    if limit is not None and limit < 1:
        for call in calls:
            _discard(call)
        raise ConfigError("limit", limit, "give a whole number of at least 1, or None")
    group = _Group(calls, limit or max(1, len(calls)))
    try:
        return await group.run()
    except BaseException:
        await group.stop()
        raise


class _Group:
    def __init__(self, calls: Sequence[Awaitable[Any]], limit: int) -> None:
        self._waiting = list(reversed(list(enumerate(calls))))
        self._limit = limit
        self._run = current_run()
        # The places of each one's result: more than one where a future is given twice.
        self._running: dict[asyncio.Future[Any], list[int]] = {}
        self._results: list[Any] = [None] * len(calls)

    async def run(self) -> list[Any]:
        while self._waiting or self._running:
            self._fill()
            done, _ = await asyncio.wait(
                self._running, return_when=asyncio.FIRST_COMPLETED
            )
            # In the order given, so that two failures of one turn have a first.
            for task in sorted(done, key=self._running.__getitem__):
                for index in self._running.pop(task):
                    self._results[index] = task.result()
        return self._results

    def _fill(self) -> None:
        while self._waiting and len(self._running) < self._limit:
            refusal = None if self._run is None else stop_here(self._run)
            if refusal is not None:
                raise refusal
            index, call = self._waiting.pop()
            self._running.setdefault(asyncio.ensure_future(call), []).append(index)

    async def stop(self) -> None:
        for _, call in self._waiting:
            _discard(call)
        ours = [task for task in self._running if not self._is_shared(task)]
        for task in ours:
            task.add_done_callback(retrieve)
            self._cancel(task)
        if ours:
            # Bounded: a sibling that swallows its cancel must not hold the rest.
            settle = config.current().settle
            run = self._run
            patience = settle if run is None else run.work.tree.patience(settle)
            await asyncio.wait(ours, timeout=patience)

    def _is_shared(self, task: asyncio.Future[Any]) -> bool:
        return self._run is not None and awaited_outside(task, self._run.work.outside)

    def _cancel(self, task: asyncio.Future[Any]) -> None:
        message = "hangup: a sibling failed or the run was abandoned"
        if self._run is None or not isinstance(task, asyncio.Task):
            task.cancel(message)
            return
        work = self._run.work
        if not work.tree.hold_back(task, lambda: self._cancel(task)) and (
            work.tree.signal(task)
        ):
            cancel_alone(task, work.outside, message)


def _discard(call: Awaitable[Any]) -> None:
    if inspect.iscoroutine(call):
        call.close()
    elif isinstance(call, asyncio.Future):
        call.cancel()
