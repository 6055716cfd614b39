"""A2A servers of the Python SDK (``a2a-sdk`` 1.x): every task is worked on in a run.

Installed with ``hangup.instrument()``, for each ``DefaultRequestHandler`` of the
process, or by hand, for one executor, with settings of its own::

    from hangup.servers.a2a import protect

    executor = protect(MyExecutor(), budget=120, on_disconnect="finish")

- The deadline and the token come with the HTTP request, and only ever tighten. A task
  that is stopped by its deadline fails.
- ``tasks/cancel`` kills the run: what the executor had begun is stopped, also where its
  own ``cancel`` does not see to that.
- A stream that nobody reads any more is a client that left. ``on_disconnect`` says what
  that means: ``abandon`` (the default), ``grace`` (a resubscription in time is a
  return), or ``finish``: the task is detachable, and meant to outlive its request. So
  is one that was sent with ``return_immediately``.
- A caller that waits for its answer without a stream is watched by
  :class:`hangup.servers.asgi.HangupMiddleware` around the application, if there is one.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from hangup import config
from hangup.config import Mode, OnDisconnect
from hangup.core import rollout
from hangup.core.cause import Cause
from hangup.core.clock import SYSTEM_CLOCK
from hangup.core.current import Position, current_run, enter
from hangup.core.deadline import Deadline, check_budget
from hangup.core.guard import guarded
from hangup.core.scope import RunScope
from hangup.errors import ArgumentError
from hangup.otel import wire
from hangup.otel.mending import Mending
from hangup.servers._common_exchange import cause_of, connect, ends_here
from hangup.servers._common_fields import Fields
from hangup.servers._common_plan import unasked, under

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from hangup.core.run import Run
    from hangup.otel.patch import Patch

Executor = TypeVar("Executor")

_BLOCKING: Final = "SendMessage"
_NAME: Final = "a2a"
# Nobody is told of these but the task itself: it is canceled, where it would fail.
_CANCELED: Final = (Cause.DISCONNECT, Cause.KILLED, Cause.SUPERSEDED)


def protect(  # noqa: PLR0913  keywords
    executor: Executor,
    *,
    budget: float | None = None,
    mode: Mode | str | None = "enforce",
    name: str | None = None,
    tenant: str | None = None,
    on_disconnect: OnDisconnect | str | None = None,
    grace: float | None = None,
) -> Executor:
    """Return an executor whose tasks are worked on in runs.

    Args:
        executor: An ``AgentExecutor``.
        budget: Seconds for one message; ``HANGUP_BUDGET`` if None.
        mode: off, observe, refuse or enforce. ``HANGUP_MODE`` and the mode of the run
            that a message continues are ceilings. None: that of the process, and
            ``observe`` where that has none.
        name: What the runs are called in metrics; ``a2a`` if None.
        tenant: Whom the work is for.
        on_disconnect: What it means that nobody reads the stream of a task any more:
            abandon, grace or finish; ``HANGUP_ON_DISCONNECT`` if None.
        grace: Seconds to come back in; ``HANGUP_GRACE`` if None.

    Raises:
        ConfigError: A setting cannot be used.
        ArgumentError: It is no executor.
    """
    if not callable(getattr(executor, "execute", None)):
        remedy = "give it an instance of a2a.server.agent_execution.AgentExecutor"
        raise ArgumentError("hangup.servers.a2a.protect", repr(executor), remedy)
    check_budget(budget)
    settings = {
        "budget": budget,
        "mode": config.read_mode("mode", mode),
        "name": name or _NAME,
        "tenant": tenant,
        "on_disconnect": config.read_on_disconnect("on_disconnect", on_disconnect),
        "grace": config.read_seconds("grace", grace),
    }
    _State.hooked = True
    _mending.install()
    return cast("Executor", _Protected(executor, settings))


class _Protected:
    """An executor around another one; everything else is that one's."""

    def __init__(self, inner: Any, settings: dict[str, Any]) -> None:
        self._inner = inner
        self._settings = settings
        # The runs that are worked in, by task; those the SDK was asked to cancel.
        self._runs: dict[str, Run] = {}
        self._asked: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_inner"], name)

    async def execute(self, context: Any, event_queue: Any) -> None:
        """Work on a message in a run. Never raises a stop."""
        opening = guarded(self._opening, context)
        if opening is None:
            await self._inner.execute(context, event_queue)
            return
        scope, inbound, alone = opening
        task = str(context.task_id)
        leave = enter(Position(None)) if alone else _nothing
        run: Run | None = None
        try:
            with scope as run:
                connect(run, inbound)
                self._runs[task] = run
                await self._inner.execute(context, event_queue)
                run.deliver()
        except BaseException as error:
            if run is None or not ends_here(error):
                raise
            cause = cause_of(run, error)
            if task in self._asked:
                return  # the SDK says what has become of the task
            await _tell(cause, run, context, event_queue, error)
        finally:
            leave()
            if self._runs.get(task) is run:
                del self._runs[task]
            self._asked.discard(task)

    async def cancel(self, context: Any, event_queue: Any) -> None:
        """Kill the run of a task, and let the executor see to the rest."""
        task = str(context.task_id)
        run = self._runs.get(task)
        if run is not None:
            self._asked.add(task)
            run.root.cancel(Cause.KILLED, "tasks/cancel")
        await self._inner.cancel(context, event_queue)

    def left(self, task: str) -> None:
        """Note that nobody reads of a task any more."""
        run = self._runs.get(task)
        if run is not None:
            run.leave()

    def came_back(self, task: str) -> None:
        """Note that somebody does again."""
        run = self._runs.get(task)
        if run is not None:
            run.reattach()

    def _opening(
        self, context: Any
    ) -> tuple[RunScope, wire.Inbound | None, bool] | None:
        given, settings = self._settings, config.current()
        rule = rollout.find((), given["name"] or "", given["tenant"] or "")
        asked: Mode | None = given["mode"]
        mode = (asked or Mode.ENFORCE).least(settings.mode)
        if Mode.OFF in (mode, None if rule is None else rule.mode):
            return None
        state = getattr(context.call_context, "state", {})
        headers = [
            (str(name).lower().encode("latin-1", "replace"), str(value).encode())
            for name, value in dict(state.get("headers") or {}).items()
        ]
        inbound = Fields(headers, b"").inbound(SYSTEM_CLOCK)
        meant = given["on_disconnect"] or settings.on_disconnect
        if getattr(context.configuration, "return_immediately", False):
            meant = OnDisconnect.FINISH
        around = current_run()
        budgets = (None if rule is None else rule.budget, given["budget"])
        ruled = (seconds for seconds in budgets if seconds is not None)
        deadline = Deadline.after(next(ruled, settings.budget))
        alone = True
        if around is not None:
            mode = mode.least(around.mode)
            # Only who waits for the answer itself waits for this request.
            blocking = state.get("method") == _BLOCKING
            alone = not blocking or meant is not OnDisconnect.ABANDON
        if inbound is not None:
            mode = under(mode, inbound)
            theirs = wire.deadline_of(inbound, SYSTEM_CLOCK, settings.max_budget)
            deadline = deadline.tightened(theirs)
        scope = RunScope(
            name=given["name"],
            tenant=given["tenant"],
            mode=mode,
            deadline=deadline,
            token=None if inbound is None else inbound.token,
            joined=inbound is not None,
            server=True,
            on_disconnect=meant,
            grace=given["grace"],
            place=unasked(mode) if asked is None else None,
        )
        return scope, inbound, alone


async def _tell(
    cause: Cause, run: Run, context: Any, queue: Any, error: BaseException
) -> None:
    """Say what became of a task whose run was stopped."""
    from a2a.server.tasks import TaskUpdater  # noqa: PLC0415  there where this is used
    from a2a.utils.errors import InternalError  # noqa: PLC0415  as above

    if cause not in _CANCELED:
        message = f"the run {run.name!r} was stopped: {cause.value}"
        raise InternalError(message=message) from error
    try:
        await TaskUpdater(queue, context.task_id, context.context_id).cancel()
    except Exception as fault:  # a task that was never begun, or is over
        raise InternalError(message=f"the task was stopped: {cause.value}") from fault


def _nothing() -> None:
    """Do nothing."""


# What an executor is served with that nobody has protected by hand.
_UNASKED: Final[dict[str, Any]] = {
    "budget": None,
    "mode": None,
    "name": _NAME,
    "tenant": None,
    "on_disconnect": None,
    "grace": None,
}


class _State:
    instrumented = False
    hooked = False


def _beginnings(original: Any, patch: Patch) -> Callable[..., Any]:
    @functools.wraps(original)
    def begin(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if patch.active and _State.instrumented:
            guarded(_take_over, self)

    return begin


def _take_over(active: Any) -> None:
    executor = active._agent_executor  # noqa: SLF001  there is no other way to it
    if not isinstance(executor, _Protected):
        active._agent_executor = _Protected(executor, _UNASKED)  # noqa: SLF001  likewise


def _subscriptions(original: Any, patch: Patch) -> Callable[..., Any]:
    @functools.wraps(original)
    def subscribe(self: Any, *args: Any, **kwargs: Any) -> Any:
        events = original(self, *args, **kwargs)
        executor = getattr(self, "_agent_executor", None)
        if not patch.active or not isinstance(executor, _Protected):
            return events
        return _read(self, executor, events, back=not kwargs.get("request"))

    return subscribe


async def _read(
    active: Any, executor: _Protected, events: Any, *, back: bool
) -> AsyncIterator[Any]:
    """Hand on what becomes of a task, and see whether its last reader has gone."""
    if back:
        guarded(executor.came_back, str(active.task_id))
    state = 0
    try:
        async for event in events:
            state = getattr(getattr(event, "status", None), "state", state)
            yield event
    finally:
        await events.aclose()
        guarded(_note_end, active, executor, state)


def _note_end(active: Any, executor: _Protected, state: int) -> None:
    from a2a.server.agent_execution.active_task import (  # noqa: PLC0415  see _tell
        INTERRUPTED_TASK_STATES,
        TERMINAL_TASK_STATES,
    )

    if active.is_finished or state in (TERMINAL_TASK_STATES | INTERRUPTED_TASK_STATES):
        return
    # The consumer of the events holds one reference for itself.
    if getattr(active, "_reference_count", 0) <= 1:
        executor.left(str(active.task_id))


_ACTIVE: Final = ("a2a.server.agent_execution.active_task", "ActiveTask")
_mending: Final = Mending(
    (*_ACTIVE, "__init__", _beginnings), (*_ACTIVE, "subscribe", _subscriptions)
)


def install() -> None:
    """Work in runs on what any handler of the process is sent. Idempotent."""
    _State.instrumented = True
    _mending.install()


def uninstall() -> None:
    """Take it back, but for executors given to :func:`protect`. Idempotent."""
    _State.instrumented = False
    if not _State.hooked:
        _mending.uninstall()
