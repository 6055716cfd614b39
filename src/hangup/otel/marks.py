"""What a call's span tells of the decision about it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from opentelemetry import trace
from opentelemetry.semconv.attributes.error_attributes import ERROR_TYPE
from opentelemetry.trace import StatusCode

from hangup.core.cause import Cause
from hangup.core.policy import Decision
from hangup.core.registry import RunObserver
from hangup.errors import DeadlineExceeded
from hangup.otel import names, runspan
from hangup.spend.fate import Fate

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span

    from hangup.core.run import Run
    from hangup.spend.posting import Posting

_MOST_THREADS = 1_000
_LATE = f"{DeadlineExceeded.__module__}.{DeadlineExceeded.__qualname__}"


class WouldRefuse(RunObserver):
    """Hears, between a span's start and its first statement, what would be refused.

    The answer to "may this call start" is yes in observe mode, and says nothing else.
    Thread-safe: each thread finds its own.

    Attributes:
        noted: The cause by thread; empty nearly always, so that a call that is plainly
            allowed pays for one look.
    """

    def __init__(self) -> None:
        self.noted: dict[int, str] = {}

    def refused(
        self,
        run: Run,  # noqa: ARG002
        kind: str,  # noqa: ARG002
        cause: Cause,
        decision: str,
        model: str | None,  # noqa: ARG002
    ) -> None:
        """Note it for the span that has just been started on this thread."""
        if decision == Decision.WOULD_REFUSE:
            if len(self.noted) >= _MOST_THREADS:
                self.noted.clear()
            self.noted[threading.get_ident()] = cause.value

    def forget(self) -> None:
        """Forget what was noted on this thread before."""
        self.noted.pop(threading.get_ident(), None)

    def mark(self, span: Span, run: Run | None) -> None:
        """Mark the span, if what was noted on this thread is about it."""
        cause = self.noted.pop(threading.get_ident(), None)
        if cause is not None and run is not None:
            span.set_attribute(names.RUN_ID, run.id)
            span.set_attribute(names.CAUSE, cause)
            span.set_attribute(names.DECISION, Decision.WOULD_REFUSE.value)


def refuse(span: Span, run: Run | None) -> None:
    """Mark and end a refused span: it is exported, and no live span leaks."""
    abandonment = None if run is None else run.token.abandonment
    if run is not None and abandonment is not None:
        span.set_attribute(names.RUN_ID, run.id)
        span.set_attribute(names.CAUSE, abandonment.cause.value)
        span.set_attribute(names.DECISION, Decision.REFUSE.value)
        runspan.link(span, run.root.span, names.LINK_RUN)
        if abandonment.cause is Cause.DEADLINE:
            span.set_attribute(ERROR_TYPE, _LATE)
            span.set_status(StatusCode.ERROR, "refused: the run's deadline has passed")
    span.end()


def exemplar_of(posting: Posting) -> Context | None:
    """Return a context naming the wasted call's span: exemplars read it."""
    if posting.fate is not Fate.WASTED or posting.span_context is None:
        return None
    if not isinstance(posting.span_context, trace.SpanContext):
        return None
    return trace.set_span_in_context(trace.NonRecordingSpan(posting.span_context))
