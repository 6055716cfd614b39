"""Asking the policy for a run, and acting on its answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hangup.config import Mode
from hangup.core import registry
from hangup.core.cause import Cause
from hangup.core.current import POSITION, position
from hangup.core.interrupt import awaited_outside
from hangup.core.policy import ALLOWED, Decision, Verdict, decide
from hangup.core.tree import current_task
from hangup.errors import Stop, seconds

if TYPE_CHECKING:
    import asyncio
    from contextvars import Context

    from hangup.core.run import Run

# Members of an Enum are looked up through a Python frame before 3.12.
_ALLOW = Decision.ALLOW
_OFF = Mode.OFF

# A leftover that swallows this many refusals gets the signal it cannot swallow.
_REFUSALS_BEFORE_STOP = 32


def ask(run: Run, needs: float = 0.0) -> Verdict:
    """Ask the policy whether a spending call may start here, now. Raises nothing."""
    if run.delivered_at is not None or run.mode is _OFF:
        return ALLOWED
    token = run.token
    now = run.clock.monotonic()
    abandonment = token.poll(now)
    remaining = token.deadline.at - now
    if abandonment is None and remaining > 0 and remaining >= needs:
        return ALLOWED
    # Looked up only here: nearly every call is allowed before.
    here = position()
    shield = None if here is None else here.shield
    return decide(
        mode=run.mode,
        cause=None if abandonment is None else abandonment.cause,
        remaining=remaining,
        needs=needs,
        shielded=shield is not None and not shield.deadline.expired(),
        inert=run.inert,
    )


def admit(
    run: Run, kind: str, needs: float = 0.0, model: str | None = None
) -> BaseException | None:
    """Ask for a spending call that is about to start here, and act on the answer.

    Leaves latent, abandons a run that has too little time, reports the refusal.

    Args:
        run: The run the call belongs to.
        kind: What wants to start, a value of ``hangup.call.kind``.
        needs: The least time in seconds it is worth starting with.
        model: The model that it would call, where one is named.

    Returns:
        What to raise instead of starting, or None to go on.
    """
    if run.latent:
        run.begin_spending()
    # The rule for nearly every call, in one step. A deadline is the earliest of the
    # tree above, and a cause comes down at once: nothing else needs to be asked.
    token = run.token
    remaining = token.deadline.at - run.clock.monotonic()
    if token.abandonment is None and remaining > 0 and remaining >= needs:
        return None
    verdict = ask(run, needs)
    if verdict.decision is _ALLOW or _serves_others(run):
        return None
    cause = verdict.cause or Cause.DEADLINE
    if verdict.decision is Decision.REFUSE:
        _record(run, cause, kind, needs)
    registry.notify("refused", run, kind, cause, verdict.decision.value, model)
    if verdict.decision is Decision.WOULD_REFUSE:
        return None
    return _signal(run)


def stop_here(run: Run, *, under_way: bool = False) -> BaseException | None:
    """Return the stop to raise here if the run must not go on; counts nothing.

    Args:
        run: The run that the work is for.
        under_way: It has begun, and goes on where it is drained.
    """
    if run.latent:
        return None
    verdict = ask(run)
    if verdict.decision is not Decision.REFUSE or _serves_others(run):
        return None
    if under_way and run.token.abandonment is not None and _is_drained():
        return None
    _record(run, verdict.cause or Cause.DEADLINE, "it", 0.0)
    return _signal(run)


def _is_drained() -> bool:
    here = position()
    return here is not None and here.drain is not None and here.drain.holds


def owner_of_cause(run: Run) -> Run:
    """Return the run up the tree that owns this run's abandonment."""
    abandonment = run.token.abandonment
    if abandonment is None:
        return run
    # None on the way: a delivered run, which a cause from above passes by.
    while run.parent is not None and (abandonment is None or abandonment.inherited):
        run = run.parent
        abandonment = run.token.abandonment
    return run


def _serves_others(run: Run) -> bool:
    task = current_task()
    return task is not None and serves_others(run, task)


def serves_others(run: Run, task: asyncio.Task[Any]) -> bool:
    """Whether a healthy run besides this one waits for ``task``.

    A single-flight task belongs to its other waiters too: it is neither cancelled nor
    refused. The task of a scope is not one, whatever its creator keeps of it. To be
    asked on the task's loop.
    """
    around: Run | None = run
    while around is not None:
        if around.work.task is task:
            return False
        around = around.parent

    def healthy_elsewhere(context: Context) -> bool:
        here = context.get(POSITION)
        other = None if here is None else here.run
        return (
            other is not None
            and other.root is not run.root
            and other.token.abandonment is None
            and not other.inert
        )

    return awaited_outside(task, healthy_elsewhere)


def _record(run: Run, cause: Cause, kind: str, needs: float) -> None:
    """Abandon the run whose spending call is refused, if it has not been."""
    if run.token.abandonment is not None:
        return
    left = run.token.deadline.remaining()
    if left > 0:
        run.cancel(cause, f"{kind} needs {needs:g} s, {seconds(left)} are left")
        return
    # A shared deadline belongs to the run that set it.
    at = run.token.deadline.at
    while run.parent is not None and run.parent.token.deadline.at <= at:
        run = run.parent
    run.cancel(cause, at=at)


def _signal(run: Run) -> BaseException:
    """Return the stop to raise at this place, and note who has got it.

    ``Stop`` needs a boundary that turns it into an error: the scope of the run that
    owns the cause. Once that was left, or on a thread or task the run did not start, an
    ordinary error is raised instead, which no worker dies of. So it is on a task that
    works for a scope whose own task gets no stop (any more): it may wait for a word
    that a library's worker only says of an ordinary error.
    """
    owner = owner_of_cause(run)
    abandonment = owner.token.abandonment
    if run.work.take_signal():
        registry.notify("swallowed", owner)
    alone = owner.work.left or _waited_for(owner)
    at_home = run.work.is_home() and (
        not alone or owner.work.late_refusal() > _REFUSALS_BEFORE_STOP
    )
    if abandonment is None or not at_home:
        return owner.error()
    return Stop(owner.id, owner.name, abandonment.cause.value, abandonment.detail)


def _waited_for(owner: Run) -> bool:
    """Whether a scope's task, which is not this one, may wait here for ever."""
    task, scope = current_task(), owner.work.task
    if task is None or scope is None or task is scope or scope.done():
        return False
    return not owner.work.acts or owner.work.tree.signalled(scope)
