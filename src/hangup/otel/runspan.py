"""The span a run is seen by: the one around it, or the first root span inside it.

It gets the cause, the deadline, the overrun and what was wasted, so that abandoned runs
can be found in any trace store. Attributes must be set before a span ends: the SDK
freezes them there, and what is spent after that is only in ``hangup.run.closed``.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from opentelemetry import trace

from hangup.core.cause import Cause
from hangup.core.clock import unix_offset
from hangup.core.guard import guarded
from hangup.otel import names
from hangup.spend.fate import Fate

if TYPE_CHECKING:
    from collections.abc import Callable

    from opentelemetry.trace import Span

    from hangup.core.run import Run

# Somebody's act: the span it came from is worth a link.
_ACTS = (Cause.KILLED, Cause.SUPERSEDED)

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
    _before_end(span, lambda: guarded(_note_end, run, span))


def note_abandoned(run: Run) -> None:
    """Put the abandonment on the run's span: attributes, an event, perhaps a link."""
    span, abandonment = run.span, run.token.abandonment
    if span is None or abandonment is None or not span.is_recording():
        return
    attributes: dict[str, Any] = {names.CAUSE: str(abandonment.cause)}
    if abandonment.detail:
        attributes[names.DETAIL] = abandonment.detail
    at = abandonment.at + unix_offset(run.clock)
    span.set_attributes(
        attributes
        | {
            names.ABANDONED_AT: round(at * 1000),
            names.RUN_NAME: run.name,
            names.MODE: str(run.mode),
        }
    )
    span.add_event(names.EVENT_ABANDONED, attributes, timestamp=round(at * 1e9))
    if abandonment.cause in _ACTS:
        link(span, trace.get_current_span(), names.LINK_STOPPED_BY)


def link(span: Span, other: Span | None, what: str) -> None:
    """Link a span to one of another trace; inside one trace parents tell it."""
    here = None if other is None else other.get_span_context()
    if (
        here is not None
        and here.is_valid
        and here.trace_id != span.get_span_context().trace_id
    ):
        span.add_link(here, {names.LINK: what})


def _note_end(run: Run, span: Span) -> None:
    if not span.is_recording():
        return
    if run.deadline.is_set:
        past = run.clock.monotonic() - run.token.deadline.at
        span.set_attribute(names.SPAN_OVERRUN, max(0.0, past))
    if run.token.abandonment is None or run.ledger is None:
        return
    if run.statement is not None:
        run.statement.catch_up()
    wasted = run.ledger.totals()[Fate.WASTED]
    span.set_attribute(f"{names.TOKENS}.{Fate.WASTED}.input", wasted.input)
    span.set_attribute(f"{names.TOKENS}.{Fate.WASTED}.output", wasted.output)
    if wasted.usd is not None:
        span.set_attribute(f"{names.COST}.{Fate.WASTED}", float(wasted.usd))


def _before_end(span: Span, note: Callable[[], None]) -> None:
    # The SDK has no hook between the last statement and the freezing of attributes:
    # ``_on_ending`` comes after it. So the one span a run is seen by gets its own.
    end = span.end

    def end_with_note(end_time: int | None = None) -> None:
        note()
        end(end_time)

    span.end = end_with_note  # type: ignore[method-assign]  # on this instance only
