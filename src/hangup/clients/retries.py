"""tenacity, and stamina which is made of it: no attempt after the stop, no vain sleep.

"Retry unless" retries a stop as it retries anything: an attempt in a stopped run would
be refused, but the loop would sleep on until it has had all its attempts (case b3).
Here it ends with the stop itself. And where nothing can end a sleep, on a thread, it
gives up before one that would last past the deadline, as after its last attempt.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final

from hangup.config import Mode
from hangup.core.admission import ask, stop_here
from hangup.core.current import current_run
from hangup.core.guard import guarded
from hangup.core.policy import Decision
from hangup.core.unwind import is_signal
from hangup.otel.mending import Mending

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from hangup.otel.patch import Patch


class _Raise(Exception):  # noqa: N818  it carries one
    """What must come out of the loop."""

    def __init__(self, stop: BaseException) -> None:
        super().__init__(stop)
        self.stop = stop


def _ends(state: Any) -> bool | _Raise:
    """Whether the loop is to end with what its last attempt ended with."""
    run = current_run()
    if run is None or ask(run).decision is not Decision.REFUSE:
        return False
    outcome = state.outcome
    error = outcome.exception() if outcome.failed else None
    if error is not None and is_signal(error):
        return True
    stop = stop_here(run)
    return False if stop is None else _Raise(stop)


def _conclude(retrying: Any, state: Any) -> bool:
    """Return whether that was all; raises the stop where the loop hides it."""
    found = guarded(_ends, state)
    if isinstance(found, _Raise):
        raise found.stop
    if found:
        retrying.iter_state.retry_run_result = False
    return bool(found)


def _give_up(retrying: Any, state: Any) -> None:
    """Have the loop give up before a sleep after which no attempt may start."""
    run = current_run()
    if (
        run is not None
        and run.mode is Mode.ENFORCE
        and ask(run, state.upcoming_sleep).decision is Decision.REFUSE
    ):
        retrying.iter_state.stop_run_result = True


def _retry(original: Any, patch: Patch) -> Callable[..., None]:
    @functools.wraps(original)
    def run_retry(self: Any, retry_state: Any) -> None:
        if not (patch.active and _conclude(self, retry_state)):
            original(self, retry_state)

    return run_retry


def _stop(original: Any, patch: Patch) -> Callable[..., None]:
    @functools.wraps(original)
    def run_stop(self: Any, retry_state: Any) -> None:
        original(self, retry_state)
        if patch.active:
            guarded(_give_up, self, retry_state)

    return run_stop


def _retry_async(
    original: Any, patch: Patch
) -> Callable[..., Coroutine[Any, Any, None]]:
    @functools.wraps(original)
    async def run_retry(self: Any, retry_state: Any) -> None:
        if not (patch.active and _conclude(self, retry_state)):
            await original(self, retry_state)

    return run_retry


# What sleeps on a task is ended by the stop.
_mending: Final = Mending(
    ("tenacity", "BaseRetrying", "_run_retry", _retry),
    ("tenacity", "BaseRetrying", "_run_stop", _stop),
    ("tenacity.asyncio", "AsyncRetrying", "_run_retry", _retry_async),
)


def install() -> None:
    """See to tenacity's loops, now or when it is imported. Idempotent."""
    _mending.install()


def uninstall() -> None:
    """Take it back. Idempotent."""
    _mending.uninstall()
