"""docket: tasks that a run adds, and that a worker does for it.

Nothing is to be done for it but ``hangup.instrument()`` on both sides, or
:func:`install` by hand. Which tasks are tied to the run, see
:mod:`hangup.otel.errands`; perpetual tasks never are. Of a tied task

- the worker looks, when it begins, whether the run still goes on. If not (stopped, or
  past its deadline: the time in the queue counts) the task is not run: its state is
  ``CANCELLED``, and it counts as a refused call;
- while it runs it is cut as any task of a run is, and ends as ``CANCELLED`` too, so
  that a ``Retry`` does not bring it back;
- when an enforced run stops, or any run is killed, its tasks are cancelled
  (``docket.cancel``), wherever they are; but for those with a key of your own, which
  may be another's task by now: they stop by the board. In ``refuse`` none is begun, and
  what runs goes on.

Who waits in ``get_result`` is stopped by the run itself. A retry carries the run too,
and so does a task for later, if that is before the run's deadline.
The line on the run (see :mod:`hangup.otel.board`) is in docket's own Redis. What stops
a run must happen while the event loop runs that added its tasks; after that only the
deadline is left, which came with the task.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import os
import time
import weakref
from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Any, Final

from hangup.clients import docket_tasks
from hangup.clients.docket_tasks import board_name
from hangup.config import Mode
from hangup.core.guard import guarded
from hangup.otel import errands, settlement
from hangup.otel.errands import Lines
from hangup.otel.mending import Mending
from hangup.otel.once import warn_once
from hangup.otel.ties import Ties

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from hangup.core.run import Run
    from hangup.otel.board import Post
    from hangup.otel.notices import Notice
    from hangup.otel.patch import Patch

    Errands = deque[Callable[[], Awaitable[object]]]

_SCHEME: Final = "docket"
_MOST: Final = 10_000
_PERPETUAL: Final = "Perpetual"


class _Clerk:
    """Does in order, on the loop that a docket belongs to, what is to be told it.

    Args:
        loop: The loop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._waiting: Errands = deque()
        self._task: asyncio.Task[None] | None = None

    def submit(self, errand: Callable[[], Awaitable[object]]) -> None:
        """Have ``errand`` awaited. Thread-safe, never blocks; nothing once it ended.

        With more than 10,000 things to do the next is dropped, and said so once.
        """
        if len(self._waiting) >= _MOST:
            warn_once(
                "docket clerk",
                "a docket's Redis is too slow: some tasks of runs that have stopped "
                "are not cancelled (said once per process)",
            )
            return
        self._waiting.append(errand)
        with contextlib.suppress(RuntimeError):  # the loop is closed
            # Of no run: what it has to say of one is said after its end.
            empty = contextvars.Context()
            self.loop.call_soon_threadsafe(self._wake, context=empty)

    def _wake(self) -> None:
        if self._task is None or self._task.done():
            self._task = self.loop.create_task(self._work(), name="hangup-docket")

    async def _work(self) -> None:
        while self._waiting:
            errand = self._waiting.popleft()
            try:
                await errand()
            except Exception as error:  # noqa: BLE001  Redis is down, or the docket left
                warn_once(
                    "docket",
                    "a docket could not be told of a run: %r (said once per process)",
                    error,
                )


class _Sender:
    """What this process has added, and keeps lines for."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.lines: Lines[tuple[Any, _Clerk]] = Lines(_SCHEME)
        self.tasks: OrderedDict[str, tuple[Any, _Clerk]] = OrderedDict()
        self.clerks: weakref.WeakKeyDictionary[Any, _Clerk] = (
            weakref.WeakKeyDictionary()
        )
        self.ties = Ties(_revoke)

    def clerk_of(self, docket: Any) -> _Clerk:
        """Return that of a docket on the running loop."""
        loop = asyncio.get_running_loop()
        found = self.clerks.get(docket)
        if found is None or found.loop is not loop:
            found = self.clerks[docket] = _Clerk(loop)
        return found


def _revoke(run: Run, ids: list[str]) -> None:
    if run.mode is Mode.REFUSE:
        return  # it cuts what runs
    for one in ids:
        found = _sender.tasks.pop(one, None)
        if found is not None:
            docket, clerk = found
            if (line := errands.task_line(run, one)) is not None:
                clerk.submit(functools.partial(_write, docket, *line))
            if errands.is_own(one):
                clerk.submit(functools.partial(docket.cancel, one))


async def _write(docket: Any, post: Post, text: str) -> None:
    async with docket.redis() as redis:
        left = post.lifetime(time.monotonic())  # now: what waited, waited in vain
        name = board_name(docket, post.key)
        await redis.set(name, text, px=round(left * 1000))


def _tell(origin: str, notice: Notice) -> None:
    """Take a notice for the board; see :class:`hangup.otel.settlement.Transport`."""
    found = _sender.lines.close(origin, notice)
    if found is not None:
        (docket, clerk), post, text = found
        clerk.submit(functools.partial(_write, docket, post, text))


def _keep_line(docket: Any, clerk: _Clerk, run: Run) -> None:
    post = _sender.lines.open(run, (docket, clerk))
    if post is not None:
        clerk.submit(functools.partial(_write, docket, post, post.opened()))
        settlement.remember(run, _sender.lines.origin_of(post))


# Adding


def _script_args(original: Any, patch: Patch) -> Callable[..., Any]:
    """Write the headers: what is returned holds the message, ready to be sent."""

    @functools.wraps(original)
    def schedule_script_args(self: Any, *args: Any, **kwargs: Any) -> Any:
        found = original(self, *args, **kwargs)
        if patch.active:
            guarded(_tie, self, found)
        return found

    return schedule_script_args


def _tie(execution: Any, prepared: Any) -> None:
    again = docket_tasks.carried_again(execution)
    if again is None:
        run = _run_for(execution)
        if run is None:
            return
        clerk = _sender.clerk_of(execution.docket)
        _keep_line(execution.docket, clerk, run)
        _sender.tasks[execution.key] = (execution.docket, clerk)
        if len(_sender.tasks) > _MOST:
            _sender.tasks.popitem(last=False)
        _sender.ties.add(run, execution.key)
        again = errands.headers(run)
    message: dict[bytes, bytes] = prepared[0]["message"]
    message.update({name.encode(): text.encode() for name, text in again.items()})
    if not prepared[1]:
        clerk = _sender.clerk_of(execution.docket)
        clerk.submit(
            functools.partial(docket_tasks.park, execution.docket, message, again)
        )


def _run_for(execution: Any) -> Run | None:
    """Return the run that an execution about to be added is tied to, if any."""
    run = errands.tied_run(execution.function_name)
    if run is None or _is_perpetual(execution.function):
        return None
    if not execution.docket.execution_ttl:
        return None  # results are not kept: nobody can wait for it
    wait = execution.when.timestamp() - run.clock.wall()
    return None if wait > run.deadline.remaining() else run


def _is_perpetual(function: Any) -> bool:
    defaults = (
        *(getattr(function, "__defaults__", None) or ()),
        *(getattr(function, "__kwdefaults__", None) or {}).values(),
    )
    return any(
        cls.__name__ == _PERPETUAL for one in defaults for cls in type(one).__mro__
    )


_sender: Final = _Sender()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_sender.reset)

_mending: Final = Mending(
    ("docket.execution", "Execution", "_schedule_script_args", _script_args),
    *docket_tasks.WANTED,
)


def install() -> None:
    """Mend docket if it is imported, else when it is. Idempotent."""
    settlement.set_transport(_tell, _SCHEME)
    _mending.install()


def uninstall() -> None:
    """Take it back. Idempotent."""
    settlement.set_transport(None, _SCHEME)
    _mending.uninstall()
