"""Keeps a deliberate stop from looking like a failure on the spans it passes."""

from __future__ import annotations

import asyncio
import functools
import sys
from typing import TYPE_CHECKING, Any

from opentelemetry.trace import StatusCode

from hangup.core.cause import Cause
from hangup.core.current import current_run
from hangup.core.guard import guarded
from hangup.core.unwind import stems_from_stop
from hangup.errors import RunAbandoned, Stop
from hangup.otel import names

if TYPE_CHECKING:
    from collections.abc import Callable, Sized

    from opentelemetry.sdk.trace import Span


class QuietSpans:
    """Wraps what the SDK's spans are told of errors. Thread-safe.

    Args:
        watched: Empty while hangup watches no provider: then nothing is kept quiet.
    """

    def __init__(self, watched: Sized) -> None:
        self._watched = watched

    def wrap_status(self, set_status: Callable[..., None]) -> Any:
        """Return ``set_status``, deaf to an error that is only a stop of ours."""

        @functools.wraps(set_status)
        def quiet_set_status(
            span: Span, status: Any, *args: Any, **kwargs: Any
        ) -> None:
            code = getattr(status, "status_code", status)
            if code is StatusCode.ERROR and guarded(self._quiets, span):
                return
            set_status(span, status, *args, **kwargs)

        return quiet_set_status

    def wrap_exception(self, record_exception: Callable[..., None]) -> Any:
        """Return ``record_exception``, deaf to a stop that is no missed deadline."""

        @functools.wraps(record_exception)
        def quiet_record_exception(
            span: Span, exception: BaseException, *args: Any, **kwargs: Any
        ) -> None:
            cause = guarded(_stop_in, exception) if self._watched else None
            late = cause == Cause.DEADLINE and isinstance(exception, RunAbandoned)
            if cause is not None and not late:
                return
            record_exception(span, exception, *args, **kwargs)

        return quiet_record_exception

    def _quiets(self, span: Span) -> bool:
        """Whether a span gets an error status only because its run was stopped.

        A deliberate cancellation is not an error; a missed deadline is one.
        """
        error = sys.exception() if self._watched else None
        cause = None if error is None else _stop_in(error)
        if cause is None:
            return False
        span.set_attribute(names.CAUSE, cause)
        return cause != Cause.DEADLINE


def _stop_in(error: BaseException) -> str | None:
    """Return the cause if ``error`` is a stop of ours, on its way or at the boundary.

    A ``CancelledError`` is ours where the run here was abandoned.
    """
    if isinstance(error, (Stop, RunAbandoned)):
        return error.cause
    if isinstance(error, BaseExceptionGroup):
        ours = stems_from_stop(error)
    else:
        ours = isinstance(error, asyncio.CancelledError)
    run = current_run() if ours else None
    abandonment = None if run is None else run.token.abandonment
    return None if abandonment is None else abandonment.cause.value
