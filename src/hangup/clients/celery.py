"""Celery: tasks that a run sends, and that a worker does for it.

Nothing is to be done for it but ``hangup.instrument()`` on both sides, or
:func:`install` by hand. Which tasks are tied to the run, see
:mod:`hangup.otel.errands`. Of a tied task

- the worker looks, when it begins, whether the run still goes on. If not (stopped, or
  past its deadline: the time in the queue counts) the task is not run. Its state is
  ``REVOKED``, with the cause in the error, and it counts as a refused call;
- while it runs, its spending calls are refused once the run has stopped, and its HTTP
  requests closed; the worker learns it within a second, mostly a quarter of one, from
  the board (see :mod:`hangup.clients.celery_board`). No worker process is ever killed
  for it: code that makes no calls runs on until it makes one;
- when the run stops, the task is revoked (``app.control.revoke``), without terminating
  anything, and marked so in the result backend: whoever waits for it is woken. (In
  ``refuse`` mode what has begun goes on: it is revoked, but not marked.) Not so a task
  with an id of your own, which may stand for others too: it stops by the board.

``AsyncResult.get`` waits no longer than the run has time. A retry carries the run too,
and so do the next steps of a chain. With the rpc backend there is no board: such
workers know only the deadline, and hear only of revokes while they are up.
"""

from __future__ import annotations

import atexit
import functools
import math
import os
import sys
import uuid
from collections import OrderedDict
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from hangup.clients import celery_tasks
from hangup.clients.celery_board import board_of, clerk, keeps_results, later
from hangup.config import Mode
from hangup.core.admission import stop_here
from hangup.core.cleanup import Detached
from hangup.core.current import current_run, position
from hangup.core.guard import guarded
from hangup.otel import carriers, errands, settlement
from hangup.otel.errands import Lines
from hangup.otel.mending import Mending
from hangup.otel.ties import Ties
from hangup.otel.wire import HEADER

if TYPE_CHECKING:
    from collections.abc import Callable

    from hangup.core.run import Run
    from hangup.otel.notices import Notice
    from hangup.otel.patch import Patch

_SCHEME: Final = "celery"
_MOST_TASKS: Final = 10_000
_AT_EXIT: Final = 1.0
_TASK_ID: Final = 4  # of send_task's arguments after the name
_TASK_TYPE: Final = "task_type"


class _Sender:
    """What this process has sent, and keeps lines for."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.lines: Lines[Any] = Lines(_SCHEME)
        self.apps: OrderedDict[str, Any] = OrderedDict()
        self.ties = Ties(_revoke)


def _revoke(run: Run, ids: list[str]) -> None:
    abandonment = run.token.abandonment
    cause = "stopped" if abandonment is None else abandonment.cause.value
    by_app: dict[int, tuple[Any, list[str]]] = {}
    for one in ids:
        app = _sender.apps.pop(one, None)
        if app is not None:
            by_app.setdefault(id(app), (app, []))[1].append(one)
            if (line := errands.task_line(run, one)) is not None:
                later(board_of(app).write, *line)
    cuts = run.mode is not Mode.REFUSE  # there, what has begun may go on
    for app, of_app in by_app.values():
        later(_revoke_now, app, of_app, f"hangup: its run was stopped, {cause}", cuts)


def _revoke_now(app: Any, ids: list[str], reason: str, cuts: bool) -> None:  # noqa: FBT001
    ids = [one for one in ids if errands.is_own(one)]
    app.control.revoke(ids)
    for one in ids if cuts else ():
        result = app.AsyncResult(one)
        if not result.ready():
            app.backend.mark_as_revoked(one, reason)


def _tell(origin: str, notice: Notice) -> None:
    """Take a notice for the board; see :class:`hangup.otel.settlement.Transport`."""
    found = _sender.lines.close(origin, notice)
    if found is not None:
        app, post, text = found
        later(board_of(app).write, post, text)


def _keep_line(app: Any, run: Run) -> None:
    """Keep a line for the run on the board of this application, from now on."""
    post = _sender.lines.open(run, app)
    if post is not None:
        later(board_of(app).write, post, post.opened())
        settlement.remember(run, _sender.lines.origin_of(post))


# Sending


def _run_for(app: Any, name: str, given: dict[str, Any]) -> Run | None:
    """Return the run that a task about to be sent is tied to, if any.

    One that is to begin after the run's deadline is meant for later: the run cannot
    wait for it. A retry is no task of its own, and stays tied.
    """
    if position() is None:
        # The next step of a chain is sent when the scope of the step before is left.
        run = celery_tasks.run_of_step(app, name)
    else:
        run = errands.tied_run(name)
    if run is None or not _can_be_awaited(app, name, given):
        return None
    if given.get("retries") or _wait(run, given) <= run.deadline.remaining():
        return run
    return None


def _can_be_awaited(app: Any, name: str, given: dict[str, Any]) -> bool:
    ignored = given.get("ignore_result")
    if ignored is None:
        # Not app.tasks: that would finalize the application.
        task = given.get(_TASK_TYPE) or app._tasks.get(name)  # noqa: SLF001
        ignored = getattr(task, "ignore_result", None)
    return not ignored and keeps_results(app)


def _wait(run: Run, given: dict[str, Any]) -> float:
    """Return the seconds until the task is to begin, at the earliest."""
    eta = given.get("eta")
    if isinstance(eta, str):
        eta = datetime.fromisoformat(eta)
    if isinstance(eta, datetime):
        aware = eta if eta.tzinfo else eta.replace(tzinfo=UTC)
        return aware.timestamp() - run.clock.wall()
    return float(given.get("countdown") or 0.0)


def _send_task(original: Any, patch: Patch) -> Callable[..., Any]:
    @functools.wraps(original)
    def send_task(self: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        if not patch.active:
            return original(self, name, *args, **kwargs)
        guarded(_without_old, kwargs)
        run = guarded(_run_for, self, name, kwargs)
        if run is None:
            if position() is None:
                return original(self, name, *args, **kwargs)
            with Detached():  # whoever injects the context: not this run
                return original(self, name, *args, **kwargs)
        guarded(_tie, self, run, args, kwargs)
        if position() is not None:
            return original(self, name, *args, **kwargs)
        token = _SENDING.set(errands.headers(run))
        try:
            guarded(_go_last)
            return original(self, name, *args, **kwargs)
        finally:
            _SENDING.reset(token)

    return send_task


_SENDING: ContextVar[dict[str, str] | None] = ContextVar("hangup.sending", default=None)
"""What the message being sent here carries, where no run is current."""


def _write_headers(headers: dict[str, Any] | None = None, **_signal: object) -> None:
    ours = _SENDING.get()
    if ours is not None and headers is not None:
        headers.update(ours)


def _go_last() -> None:
    """See that we write after whoever injects the context, which is of no run here."""
    signal = sys.modules["celery.signals"].before_task_publish
    if not signal.receivers or signal.receivers[-1][1] is not _write_headers:
        signal.disconnect(_write_headers)
        signal.connect(_write_headers, weak=False)


def _without_old(kwargs: dict[str, Any]) -> None:
    """Take out what a retry copies from the message that it was itself."""
    old = kwargs.get("headers")
    if isinstance(old, dict) and HEADER in old:
        new = dict(old)
        carriers.strip(new)
        new.pop(errands.BOARD_HEADER, None)
        kwargs["headers"] = new


def _tie(app: Any, run: Run, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    task_id = args[_TASK_ID] if len(args) > _TASK_ID else kwargs.get("task_id")
    if task_id is None:
        task_id = str(uuid.uuid4())
        if len(args) <= _TASK_ID:
            kwargs["task_id"] = task_id
    _keep_line(app, run)
    _sender.apps[task_id] = app
    if len(_sender.apps) > _MOST_TASKS:
        _sender.apps.popitem(last=False)
    _sender.ties.add(run, task_id)
    kwargs["headers"] = {**(kwargs.get("headers") or {}), **errands.headers(run)}


# Waiting


def _get(original: Any, patch: Patch) -> Callable[..., Any]:
    @functools.wraps(original)
    def get(self: Any, timeout: float | None = None, *args: Any, **kwargs: Any) -> Any:
        run = current_run() if patch.active else None
        if run is None:
            return original(self, timeout, *args, **kwargs)
        if run.mode is Mode.ENFORCE:
            if (refusal := stop_here(run)) is not None:
                raise refusal
            timeout = _clamped(timeout, run.remaining())
        try:
            result = original(self, timeout, *args, **kwargs)
        except Exception:
            # A stop wakes whoever waits: the task is revoked.
            if (refusal := stop_here(run)) is not None:
                raise refusal from None
            raise
        # A ResultSet has no id: whatever it waited for stays tied.
        if (task_id := getattr(self, "id", None)) is not None:
            guarded(_sender.ties.done, run, task_id)
        return result

    return get


def _clamped(timeout: float | None, left: float) -> float | None:
    if math.isinf(left):
        return timeout
    return max(0.0, left if timeout is None else min(left, timeout))


_sender: Final = _Sender()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_sender.reset)

_mending: Final = Mending(
    ("celery.app.base", "Celery", "send_task", _send_task),
    ("celery.result", "AsyncResult", "get", _get),
    ("celery.result", "ResultSet", "get", _get),
)


def install() -> None:
    """Mend Celery if it is imported, else when it is. Idempotent.

    In a worker: before it starts, or in ``worker_process_init``.
    """
    settlement.set_transport(_tell, _SCHEME)
    atexit.unregister(_flush_at_exit)
    atexit.register(_flush_at_exit)
    _mending.install()
    celery_tasks.install()


def uninstall() -> None:
    """Take it back, after a second at most for what is to be said. Idempotent."""
    settlement.set_transport(None, _SCHEME)
    celery_tasks.uninstall()
    _mending.uninstall()
    if (signals := sys.modules.get("celery.signals")) is not None:
        signals.before_task_publish.disconnect(_write_headers)
    clerk.flush(_AT_EXIT)
    atexit.unregister(_flush_at_exit)


def _flush_at_exit() -> None:
    clerk.flush(_AT_EXIT)
