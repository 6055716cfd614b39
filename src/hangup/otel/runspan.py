"""The span a run is seen by: the one around it, or the first root span inside it.

It gets the cause, the deadline and the overrun, so that abandoned runs can be found in
any trace store. Attributes must be set before a span ends: the SDK freezes them there.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from opentelemetry import trace

from hangup.core.clock import unix_offset
from hangup.otel import names

if TYPE_CHECKING:
    from collections.abc import Callable

    from opentelemetry.trace import Span

    from hangup.core.run import Run


# The open runs that no span shows yet, by identity. While there are none, the spans of
# the process need not be asked whether they show one.
unseen: dict[int, weakref.ref[Run]] = {}


def await_span(run: Run) -> None:
    """Note a run that opens where no span records: the first one inside shows it.

    Forgotten when it has one, when :func:`forget` says so, and with the run itself.
    """
    key = id(run)
    if run.span is None and key not in unseen:
        unseen[key] = weakref.ref(run, lambda _: unseen.pop(key, None))


def forget(run: Run) -> None:
    """Note that no span will show this run any more. Idempotent."""
    unseen.pop(id(run), None)


def adopt_current(run: Run) -> None:
    """Take the span that was current where the run was opened, if it records."""
    if run.origin is not None:
        adopt(run, trace.get_current_span(run.origin))


def adopt(run: Run, span: Span) -> None:
    """Make ``span`` the run's span, unless it has one or this one does not record."""
    if run.span is not None or not span.is_recording():
        return
    run.span = span
    forget(run)
    span.set_attribute(names.RUN_ID, run.id)
    if run.deadline.is_set:
        span.set_attribute(names.DEADLINE, round(run.deadline.unix() * 1000))
    _before_end(span, lambda: _note_overrun(run, span))


def note_abandoned(run: Run) -> None:
    """Put the abandonment on the run's span, as attributes and as an event."""
    span, abandonment = run.span, run.token.abandonment
    if span is None or abandonment is None or not span.is_recording():
        return
    attributes: dict[str, Any] = {names.CAUSE: abandonment.cause.value}
    if abandonment.detail:
        attributes[names.DETAIL] = abandonment.detail
    span.set_attributes(attributes)
    at = abandonment.at + unix_offset(run.clock)
    span.add_event(names.EVENT_ABANDONED, attributes, timestamp=round(at * 1e9))


def _note_overrun(run: Run, span: Span) -> None:
    if run.deadline.is_set and span.is_recording():
        past = run.clock.monotonic() - run.token.deadline.at
        span.set_attribute(names.SPAN_OVERRUN, max(0.0, past))


def _before_end(span: Span, note: Callable[[], None]) -> None:
    # The SDK has no hook between the last statement and the freezing of attributes:
    # ``_on_ending`` comes after it. So the one span a run is seen by gets its own.
    end = span.end

    def end_with_note(end_time: int | None = None) -> None:
        note()
        end(end_time)

    span.end = end_with_note  # type: ignore[method-assign]  # on this instance only
