"""Signal inside, error at the boundary: what comes out of an abandoned run's scope.

An exception in, an exception out; nothing is raised here.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from hangup.core.cause import Cause
from hangup.errors import (
    DeadlineExceeded,
    RunAbandoned,
    RunCancelled,
    Stop,
    abandoned_text,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hangup.core.run import Run

_LONGEST_CHAIN = 64
# Starlette's BaseHTTPMiddleware, when the application below it was stopped before it
# answered: residue of the stop, not a fault of anybody.
_RESIDUE = ("No response returned.",)


def error_of(run: Run) -> RunAbandoned:
    """Return the ordinary error for a run's abandonment."""
    told = _told(run)
    return (DeadlineExceeded if told[2] == Cause.DEADLINE else RunCancelled)(*told)


def message_of(run: Run) -> str:
    """Return what a ``CancelledError`` says that stops a run: what the error will."""
    return f"hangup: {abandoned_text(*_told(run))}"


def _told(run: Run) -> tuple[str, str, str, str, float]:
    abandonment = run.token.poll()
    cause = Cause.FAILED if abandonment is None else abandonment.cause
    detail = "" if abandonment is None else abandonment.detail
    at = run.clock.monotonic() if abandonment is None else abandonment.at
    return run.id, run.name, str(cause), detail, max(0.0, at - run.started_at)


def is_signal(error: BaseException) -> bool:
    """Whether ``error`` is a stop on its way to the boundary."""
    return isinstance(error, (Stop, RunAbandoned, asyncio.CancelledError))


def is_residue(error: BaseException) -> bool:
    """Whether a framework says only that what it waited for was stopped."""
    return isinstance(error, RuntimeError) and str(error) in _RESIDUE


def stems_from_stop(error: BaseException) -> bool:
    """Whether an abandoned run's exception is the stop, or was made of it.

    True for the signals themselves, for a group that holds nothing but them and
    framework residue, and for an exception whose cause, context or last retry attempt
    ends in one. False for a group that also holds somebody's real error.
    """
    if isinstance(error, BaseExceptionGroup):
        return _group_stems_from_stop(error)
    return any(is_signal(link) for link in _chain(error))


def hides_refusal(error: BaseException) -> bool:
    """Whether a library made an ordinary error of its own out of a refusal of ours."""
    return (
        isinstance(error, Exception)
        and not isinstance(error, RunAbandoned)
        and any(isinstance(link, RunAbandoned) for link in _chain(error))
    )


def _group_stems_from_stop(group: BaseExceptionGroup[BaseException]) -> bool:
    found = False
    for leaf in _leaves(group):
        if stems_from_stop(leaf):
            found = True
        elif not is_residue(leaf):
            return False
    return found or any(is_signal(link) for link in _chain(group))


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for part in error.exceptions:
            yield from _leaves(part)
    else:
        yield error


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield ``error`` and what it came from, nearest first."""
    pending: list[BaseException | None] = [error]
    seen: set[int] = set()
    while pending and len(seen) < _LONGEST_CHAIN:
        link = pending.pop(0)
        if link is None or id(link) in seen:
            continue
        seen.add(id(link))
        yield link
        pending += [link.__cause__, link.__context__, _last_attempt(link)]
        if isinstance(link, BaseExceptionGroup) and link is not error:
            pending += link.exceptions


def _last_attempt(error: BaseException) -> BaseException | None:
    """Return what tenacity's ``RetryError`` gave up on (its ``last_attempt``)."""
    attempt = getattr(error, "last_attempt", None)
    read = getattr(attempt, "exception", None)
    if not callable(read):
        return None
    try:
        found = read()
    except BaseException:  # noqa: BLE001  a cancelled attempt raises its CancelledError
        return asyncio.CancelledError()
    return found if isinstance(found, BaseException) else None
