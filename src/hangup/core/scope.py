"""``hangup.run``: open a run, as ``async with``, ``with`` or a decorator."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

from hangup import config
from hangup.config import Mode, OnDisconnect
from hangup.core import registry, rollout
from hangup.core.admission import owner_of_cause
from hangup.core.cause import Cause
from hangup.core.clock import SYSTEM_CLOCK
from hangup.core.current import Position, enter, position
from hangup.core.deadline import Deadline, check_budget
from hangup.core.decorator import decorated
from hangup.core.run import Run
from hangup.core.tree import current_task
from hangup.core.unwind import stems_from_stop
from hangup.errors import ArgumentError, MisuseError, RunAbandoned, Stop

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from hangup.core.clock import Clock
    from hangup.core.rollout import Place

    Function = TypeVar("Function", bound=Callable[..., Any])

_CANCELLED = "cancelled from outside"


def _converts(run: Run) -> bool:
    """Whether hangup stops this run at all, so that a stop in it may be ours."""
    return run.mode.refuses or (run.cause is Cause.KILLED and run.mode is not Mode.OFF)


def _at_the_edge(run: Run, error: BaseException) -> BaseException | None:
    """Return the ordinary error for a stop from above that must not travel on as it is.

    Around this scope stands a thread that the run above did not start, such as a queue
    worker's: it would die of a ``BaseException``.
    """
    parent = run.parent
    if parent is None or not isinstance(error, Stop) or parent.work.is_home():
        return None
    return owner_of_cause(run).error()


class RunScope:
    """Open a run for the body of ``async with``, ``with``, or a decorated function.

    Nested in a run it opens a child: the deadline is the earlier one, a cancel flows
    down, never up.

    Leaving normally delivers the run, unless its caller is away and may have come back
    (``grace``): then the run was abandoned when they left. An exception abandons it
    with cause ``failed``. An abandoned run's stop comes out as
    :class:`~hangup.RunAbandoned`; any other exception passes unchanged. A body that
    returns normally although the run was abandoned returns normally: its result is
    kept, and the record still says abandoned. (Not if a task group of anyio in it was
    cut, and has swallowed the stop: then what it returns may be halves.)

    ``async with`` waits, at most ``HANGUP_SETTLE`` seconds, for the tasks it stopped;
    ``with`` never waits.

    Held across a ``yield`` of an async generator, the run is the generator's own: the
    code that consumes it is outside between two values, is not stopped with it, and
    takes nothing of it along where it drops the generator half-way. A stop that comes
    meanwhile waits until the generator goes on. Whoever closes it, on whatever task,
    ends the run (cause ``failed`` if half-way). Not so a generator that ``contextlib``
    makes a context manager of: its block is inside. A task that the consumer starts
    between two values counts to the run all the same, and so does everything where a
    plain generator holds one; there, open the run around the loop that consumes it.

    Args:
        budget: Seconds from the start of the body; None for no deadline of its own.
        name: What the run is called in metrics: few different values, please.
        tenant: Whom the work is for.
        mode: off, observe, refuse or enforce (the default). ``HANGUP_MODE`` and the
        mode
            of the run around it are ceilings.
        supersede_key: The older run with the same key is cancelled, cause superseded.
        deadline: An absolute deadline, in place of a budget.
        token: Continue the run with this id, which came from another process.
        joined: The id came over the wire: another process opened the run.
        latent: Stay nobody's business until the first spending call (for servers).
        server: A server says when the result is delivered, not the end of the body.
        on_disconnect: What ``run.leave()`` means: abandon (the default), grace or
            finish. Of the outermost run only: it is the one somebody waits for.
        grace: Seconds to come back in; ``HANGUP_GRACE`` if None.
        place: Where the rollout's rules look for it (for servers).
        clock: What to measure on; that of the run around it, else the machine's, if
            None. Tests inject one.

    Raises:
        ConfigError: A budget or grace that is negative or NaN, an unknown mode or
            ``on_disconnect``.
        MisuseError: The scope is entered twice, left in another task (by other than an
            async generator that is closed there), or left while a run opened inside it
            is still open. ``@hangup.run`` has no parentheses.
    """

    def __init__(  # noqa: PLR0913  every one is a keyword with a default
        self,
        budget: float | None = None,
        *,
        name: str | None = None,
        tenant: str | None = None,
        mode: Mode | str | None = None,
        supersede_key: str | None = None,
        deadline: Deadline | None = None,
        token: str | None = None,
        joined: bool = False,
        latent: bool = False,
        server: bool = False,
        on_disconnect: OnDisconnect | str | None = None,
        grace: float | None = None,
        place: Place | None = None,
        clock: Clock | None = None,
    ) -> None:
        # Checked here, where the mistake is, not at the first request.
        if callable(budget):
            name = getattr(budget, "__qualname__", repr(budget))
            remedy = (
                "write @hangup.run() with the parentheses, or @hangup.run(budget=30)"
            )
            raise ArgumentError("hangup.run", f"the function {name}", remedy)
        check_budget(budget)
        self._budget = budget
        self._name = name
        self._tenant = tenant
        self._mode = config.read_mode("mode", mode)
        self._supersede_key = supersede_key
        self._deadline = deadline
        self._token = token
        self._joined = joined
        self._latent = latent
        self._server = server
        self._on_disconnect = config.read_on_disconnect("on_disconnect", on_disconnect)
        self._grace = config.read_seconds("grace", grace)
        self._place = place
        self._clock = clock
        self._run: Run | None = None
        self._leave: Callable[[], None] | None = None
        self._baseline = 0

    def step_out(self) -> None:
        """Leave the place of the run, but not the run.

        For a server whose application goes on later, and perhaps never: what runs on
        this thread meanwhile is not the run's. Idempotent; the scope is still to be
        left.
        """
        if self._leave is not None:
            self._leave()

    # Entering and leaving, shared by the sync and the async form

    def _open(self) -> Run:
        if self._run is not None:
            raise MisuseError(
                f"the scope of {self._run!r} was entered twice; call hangup.run(...) "
                "again for each run"
            )
        here = position()
        parent = None if here is None else here.run
        if parent is not None and parent.inert:
            parent = None
        name = self._name or ("run" if parent is None else parent.name)
        tenant = self._tenant or ("" if parent is None else parent.tenant)
        ruling = rollout.rule(
            parent, self._place, self._mode, self._name, tenant, self._token
        )
        mode = ruling.mode
        if parent is not None and mode is not Mode.OFF and not self._latent:
            # Whoever opens a run says that this is agent work: no latent run any more.
            parent.root.begin_spending()
        clock = self._clock or (SYSTEM_CLOCK if parent is None else parent.clock)
        budget, meant, grace = ruling.over(
            self._budget, self._on_disconnect, self._grace
        )
        deadline = self._deadline or Deadline.after(budget, clock)
        run = Run(
            name=name,
            tenant=tenant,
            mode=mode,
            deadline=deadline,
            parent=parent,
            run_id=ruling.token,
            joined=self._joined,
            latent=(self._latent and parent is None) or mode is Mode.OFF,
            supersede_key=self._supersede_key,
            on_disconnect=meant,
            grace=grace,
        )
        run.place = self._place
        self._run = run
        run.work.enter()
        task = run.work.task
        self._baseline = 0 if task is None else task.cancelling()
        around = Position(None) if here is None or parent is None else here
        ours = Position(run, around.shield, around.drain)
        self._leave = enter(ours)
        run.work.hold = ours.hold
        if not run.latent:
            run.start()
        if self._supersede_key is not None and mode is not Mode.OFF:
            registry.hold_key(run, self._supersede_key)
        return run

    def _close(self, error: BaseException | None) -> BaseException | None:
        """Leave the scope; return what to raise in place of ``error``, if anything."""
        run, leave = self._run, self._leave
        if run is None or leave is None:
            raise MisuseError(
                "a hangup.run scope was left that had not been entered; use it as "
                "'async with hangup.run(...)'"
            )
        elsewhere = current_task() is not run.work.task
        misuse = self._misuse(run, elsewhere=elsewhere)
        task = run.work.task
        owed = run.work.leave()
        leave()
        if task is not None and not elsewhere and misuse is None:
            for _ in range(owed):
                task.uncancel()
        replacement = misuse or self._settle_outcome(run, error)
        run.work.release()
        run.close()
        return replacement

    @staticmethod
    def _misuse(run: Run, *, elsewhere: bool) -> MisuseError | None:
        if elsewhere:
            if run.work.hold is not None:
                return None  # a generator that was dropped is closed by anybody
            return MisuseError(
                f"{run!r} was opened in {run.work.task} and left in {current_task()}; "
                "enter and leave a scope in the same task. Probable cause: a generator "
                "that holds it was closed elsewhere; open the run around the loop that "
                "consumes the generator instead"
            )
        here = position()
        inner = None if here is None else here.run
        if (
            inner is not None
            and inner is not run
            and inner.parent is not None
            and not inner.work.left
            and inner.work.task is run.work.task
            and run.work.encloses(inner)
        ):
            return MisuseError(
                f"{run!r} was left while {inner!r}, opened inside it, is still open; "
                "leave the inner scope first: nest the 'with' blocks"
            )
        return None

    def _settle_outcome(
        self, run: Run, error: BaseException | None
    ) -> BaseException | None:
        abandonment = run.abandonment
        if error is None:
            if not self._server and abandonment is None and not run.absence.away:
                run.deliver()
            return run.error() if self._is_cut_short(run) else None
        if abandonment is None:
            if isinstance(error, RunAbandoned) and error.run_id == run.id:
                # A child's abandonment that nobody caught: the parent ends by it too.
                run.cancel(error.cause, error.detail)
            elif isinstance(error, asyncio.CancelledError):
                run.cancel(Cause.FAILED, _CANCELLED)
            else:
                run.cancel(Cause.FAILED, type(error).__name__)
            return None
        if abandonment.inherited:
            return _at_the_edge(run, error)
        # A stop was ours, whatever the run's mode has become meanwhile.
        if not (_converts(run) or isinstance(error, Stop)):
            return None
        theirs = isinstance(error, asyncio.CancelledError) and (
            self._cancelled_outside(run)
        )
        if theirs or not stems_from_stop(error):
            return None
        # An error that says so already, such as a refusal on a thread, is good enough.
        said = isinstance(error, RunAbandoned) and error.cause == abandonment.cause
        return None if said else run.error()

    def _is_cut_short(self, run: Run) -> bool:
        """Whether a body that returns normally has had a group of anyio cut in it.

        Such a group swallows the stop of its members, and what comes after it works on
        halves.
        """
        abandonment = run.abandonment
        if self._server or abandonment is None or abandonment.inherited:
            return False
        return run.work.order.cut(run.work.task) and _converts(run)

    def _cancelled_outside(self, run: Run) -> bool:
        """Whether a cancel that is not ours is pending on the scope's task: it wins."""
        task = run.work.task
        if task is None:
            # Nobody can cancel a thread: it comes from a loop that ran inside.
            return not run.work.acts
        if current_task() is not task:
            return True
        if not run.work.tree.signalled(task):
            return True
        return task.cancelling() > self._baseline

    # async with

    async def __aenter__(self) -> Run:
        run = self._open()
        if run.work.task is None:  # pragma: no cover  no asyncio loop: trio, curio
            self._close(None)
            raise MisuseError("'async with hangup.run' needs a running asyncio task")
        return run

    async def __aexit__(
        self,
        _kind: type[BaseException] | None,
        error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        replacement = self._close(error)
        run = cast("Run", self._run)
        if run.token.abandonment is None or isinstance(replacement, MisuseError):
            pass
        elif current_task() is run.work.task:
            await run.work.settled()
        else:  # of a generator that was dropped: nobody waits
            run.work.settle_later()
        if replacement is not None:
            raise replacement from error

    # with

    def __enter__(self) -> Run:
        return self._open()

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        replacement = self._close(error)
        if self._run is not None and self._run.token.abandonment is not None:
            self._run.work.settle_later()
        if replacement is not None:
            raise replacement from error

    # @hangup.run(...)

    def again(self, **changes: object) -> Self:
        """Return a fresh, unentered scope with the same settings."""
        settings: dict[str, Any] = {
            "budget": self._budget,
            "name": self._name,
            "tenant": self._tenant,
            "mode": self._mode,
            "supersede_key": self._supersede_key,
            "deadline": self._deadline,
            "token": self._token,
            "joined": self._joined,
            "latent": self._latent,
            "server": self._server,
            "on_disconnect": self._on_disconnect,
            "grace": self._grace,
            "place": self._place,
            "clock": self._clock,
        }
        return type(self)(**(settings | changes))

    def __call__(self, function: Function) -> Function:
        """Run each call of ``function`` in a run of its own.

        Raises:
            MisuseError: It is a generator; a run cannot be held across a ``yield``.
        """
        return decorated(self, function, self._name, self._mode)
