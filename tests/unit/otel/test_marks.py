"""What a trace store can find: waste on a run's span, marks and links on calls."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import StatusCode
from support.telemetry import abandoned, chat, opened, used

import hangup
from hangup.otel import names

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer
    from support.telemetry import Telemetry

    from hangup.testing import FakeClock


def test_the_runs_span_tells_what_was_wasted_before_it_ended(
    telemetry: Telemetry, tracer: Tracer, clock: FakeClock
) -> None:
    with tracer.start_as_current_span("request"), opened(clock, mode="observe") as run:
        with chat(tracer) as span:
            used(span, 5, 7)
        clock.advance(1)
        run.cancel("disconnect")
        clock.advance(1)
        with chat(tracer, "gpt-4o") as span:
            used(span, 1_000, 100)
    attributes = telemetry.span("request").attributes or {}
    assert attributes["hangup.tokens.wasted.input"] == 1_000
    assert attributes["hangup.tokens.wasted.output"] == 100
    dollars = sum(
        one.value
        for one in telemetry.series(names.COST)[names.COST]
        if one.labels[names.FATE] == "wasted"
    )
    assert dollars > 0
    assert attributes["hangup.cost.usd.wasted"] == pytest.approx(dollars)
    assert attributes[names.MODE] == "observe"


def test_a_delivered_runs_span_speaks_of_no_waste(
    telemetry: Telemetry, tracer: Tracer, clock: FakeClock
) -> None:
    with (
        tracer.start_as_current_span("request"),
        opened(clock),
        chat(tracer) as span,
    ):
        used(span, 5, 7)
    found = [key for key in telemetry.span("request").attributes or {} if "was" in key]
    assert found == []


def test_observe_marks_the_calls_that_it_would_refuse(
    telemetry: Telemetry, tracer: Tracer, clock: FakeClock
) -> None:
    with opened(clock, mode="observe") as run:
        with chat(tracer, name="before"):
            pass
        run.cancel("disconnect")
        hangup.check()  # would be refused too, and is no span
        with tracer.start_as_current_span("no call"):
            pass
        with chat(tracer, name="after"):
            pass
    with opened(clock), chat(tracer, name="another run's"):
        pass
    marks = {
        name: (telemetry.span(name).attributes or {}).get(names.DECISION)
        for name in ("before", "no call", "after", "another run's")
    }
    assert marks == {
        "before": None,
        "no call": None,
        "after": "would_refuse",
        "another run's": None,
    }
    after = telemetry.span("after").attributes or {}
    assert (after[names.CAUSE], after[names.RUN_ID]) == ("disconnect", run.id)


def test_what_a_check_would_refuse_is_not_put_on_the_next_call(
    telemetry: Telemetry, tracer: Tracer, clock: FakeClock
) -> None:
    with opened(clock, 1, mode="observe"):
        clock.advance(2)
        hangup.check()
    with chat(tracer, name="outside"):
        pass
    assert names.DECISION not in (telemetry.span("outside").attributes or {})


def test_a_refused_call_says_so_and_a_missed_deadline_is_its_error_type(
    telemetry: Telemetry, tracer: Tracer, clock: FakeClock
) -> None:
    with abandoned(clock, 1) as run:
        clock.advance(2)
        with chat(tracer):
            pass
    span = telemetry.span("chat")
    assert dict(span.attributes or {}) | {
        names.RUN_ID: run.id,
        names.CAUSE: "deadline",
        names.DECISION: "refuse",
        "error.type": "hangup.errors.DeadlineExceeded",
    } == dict(span.attributes or {})
    assert span.status.status_code is StatusCode.ERROR


def test_a_refused_call_in_a_trace_of_its_own_links_to_the_runs_span(
    telemetry: Telemetry, tracer: Tracer, clock: FakeClock
) -> None:
    """A framework that begins a new trace for each step, or a detached context."""
    with abandoned(clock, 1, around=tracer.start_as_current_span("request")):
        clock.advance(2)
        elsewhere = trace.set_span_in_context(trace.INVALID_SPAN)
        with tracer.start_as_current_span(
            "chat", context=elsewhere, attributes={"gen_ai.operation.name": "chat"}
        ):
            pass
    [link] = telemetry.span("chat").links
    assert link.context == telemetry.span("request").get_span_context()
    assert dict(link.attributes or {}) == {names.LINK: "run"}


def test_a_refused_call_in_the_runs_trace_needs_no_link(
    telemetry: Telemetry, tracer: Tracer, clock: FakeClock
) -> None:
    with abandoned(clock, 1, around=tracer.start_as_current_span("request")):
        clock.advance(2)
        with chat(tracer):
            pass
    assert telemetry.span("chat").links == ()


@pytest.mark.parametrize("cause", ["killed", "superseded"])
def test_the_runs_span_links_to_what_stopped_it(
    telemetry: Telemetry, tracer: Tracer, clock: FakeClock, cause: str
) -> None:
    with abandoned(clock, around=tracer.start_as_current_span("older")) as run:
        with tracer.start_as_current_span("newer", context=Context()):
            run.cancel(cause)
        with chat(tracer):
            pass
    [link] = telemetry.span("older").links
    assert link.context == telemetry.span("newer").get_span_context()
    assert dict(link.attributes or {}) == {names.LINK: "stopped_by"}


def test_a_client_that_leaves_is_no_act_to_link_to(
    telemetry: Telemetry, tracer: Tracer, clock: FakeClock
) -> None:
    with abandoned(clock, around=tracer.start_as_current_span("older")) as run:
        with tracer.start_as_current_span("newer", context=Context()):
            run.cancel("disconnect")
        with chat(tracer):
            pass
    assert telemetry.span("older").links == ()
