"""One request and its run, as every adapter sees them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from opentelemetry import trace

from hangup.config import Mode
from hangup.core.cause import Cause
from hangup.core.unwind import stems_from_stop
from hangup.errors import RunAbandoned, Stop
from hangup.otel import names
from hangup.otel.wire import SKEW_WORTH_REPORTING, arrived_at

if TYPE_CHECKING:
    from hangup.core.run import Run
    from hangup.otel.wire import Inbound

SERVER_ERROR: Final = 500


def connect(run: Run, inbound: Inbound | None) -> None:
    """Note that the caller of a run that was just opened is there.

    Args:
        run: The run.
        inbound: The run of another process that it continues.
    """
    run.caller = "connected"
    if inbound is None:
        return
    if inbound.skew is not None and abs(inbound.skew) > SKEW_WORTH_REPORTING:
        # On the span of the request: the warning is said once, and this is every time.
        span = trace.get_current_span()
        span.set_attribute(names.SKEW, round(inbound.skew, 3))
    if inbound.gone is not None:
        at = arrived_at(inbound, run.clock) - inbound.gone
        run.cancel(Cause.DISCONNECT, "abandoned upstream", at=at)


def barred(run: Run) -> bool:
    """Whether the caller is told why there is no answer, instead of an answer.

    A failed run is not barred: the application is busy telling its caller so.
    """
    if run.latent:
        return False
    abandonment = run.abandonment
    return (
        abandonment is not None
        and abandonment.cause is not Cause.FAILED
        and run.work.acts
    )


def goes_on(run: Run) -> bool:
    """Whether the run goes on although its client left, and hangup sees to that.

    In observe mode the application hears of the client whatever it hears without us.
    """
    absence = run.absence
    return (
        (absence.returned or absence.may_return)
        and run.mode.refuses
        and not run.latent
        and run.delivered_at is None
        and run.token.abandonment is None
    )


def failure(status: int) -> str | None:
    """Return how a response of this status failed the run, None if it did not."""
    return f"status {status}" if status >= SERVER_ERROR else None


def hides_refusal(run: Run, status: int) -> bool:
    """Whether a response is the framework's 500 for a call that hangup refused.

    In refuse mode nothing in flight is stopped, so the refusal may come through the
    framework as an ordinary error: the caller is told the cause instead.
    """
    return (
        status == SERVER_ERROR
        and not run.latent
        and run.mode is Mode.REFUSE
        and run.cause not in (None, Cause.FAILED, Cause.DISCONNECT)
    )


def end_by(run: Run, status: int, error: BaseException | None) -> None:
    """End a run by the stop of one inside it, where a framework makes its 500 of it.

    As the scope would, which the error reaches only after the response. A status that
    somebody chose for it (an exception handler) is that one's own.

    Args:
        run: Of the request.
        status: The response's, of which nothing was sent yet.
        error: The exception that is being handled, if any.
    """
    if (
        status == SERVER_ERROR
        and isinstance(error, RunAbandoned)
        and error.run_id == run.id
        and not run.latent
        and run.abandonment is None
    ):
        run.cancel(error.cause, error.detail)


def cause_of(run: Run, stop: BaseException | None) -> Cause:
    """Return why the run has no answer; ``stop`` may be that of a child run."""
    cause = run.cause or getattr(stop, "cause", None)
    return Cause(cause) if cause else Cause.FAILED


def ends_here(error: BaseException) -> bool:
    """Whether an exception is a stop: what it was for has been done, or is now."""
    if isinstance(error, BaseExceptionGroup):
        return stems_from_stop(error)
    return isinstance(error, (Stop, RunAbandoned))
