"""The span a run is seen by, and what stands on it when it is exported."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags
from support.telemetry import abandoned, chat, instrumented, opened, used

from hangup.otel import names

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.trace import Tracer
    from support.telemetry import Telemetry

    from hangup.core.run import Run
    from hangup.testing import FakeClock


def _of(span: ReadableSpan) -> dict[str, object]:
    return {
        key: value
        for key, value in (span.attributes or {}).items()
        if key.startswith("hangup.")
    }


def test_the_span_around_an_abandoned_run_tells_what_happened(
    telemetry: Telemetry,
    tracer: Tracer,
    clock: FakeClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with (
        caplog.at_level(logging.WARNING),
        abandoned(clock, 10, around=tracer.start_as_current_span("request")) as run,
    ):
        clock.advance(4)
        run.cancel("killed", "by operator 7")
        clock.advance(8)
        with chat(tracer):
            pass
    span = telemetry.span("request")
    assert _of(span) == {
        names.RUN_ID: run.id,
        names.CAUSE: "killed",
        names.DETAIL: "by operator 7",
        names.DEADLINE: round(run.deadline.unix() * 1_000),
        names.SPAN_OVERRUN: 2,
        names.ABANDONED_AT: round((clock.wall() - 8) * 1_000),
        names.RUN_NAME: "research",
        names.MODE: "enforce",
        "hangup.tokens.wasted.input": 0,
        "hangup.tokens.wasted.output": 0,
    }
    event = next(one for one in span.events if one.name == names.EVENT_ABANDONED)
    assert event.timestamp == pytest.approx((clock.wall() - 8) * 1e9)
    assert dict(event.attributes or {}) == {
        names.CAUSE: "killed",
        names.DETAIL: "by operator 7",
    }
    assert caplog.text == ""


def test_a_deadline_stands_on_the_span_with_its_own_instant(
    telemetry: Telemetry, tracer: Tracer, clock: FakeClock
) -> None:
    with abandoned(clock, 10, around=tracer.start_as_current_span("request")):
        clock.advance(12)
        with chat(tracer):
            pass
    span = telemetry.span("request")
    assert _of(span)[names.CAUSE] == "deadline"
    assert _of(span)[names.SPAN_OVERRUN] == 2
    [event] = [one for one in span.events if one.name == names.EVENT_ABANDONED]
    assert event.timestamp == pytest.approx((clock.wall() - 2) * 1e9)


def test_a_delivered_run_has_its_id_and_no_cause(
    telemetry: Telemetry, tracer: Tracer, clock: FakeClock
) -> None:
    with tracer.start_as_current_span("request"), opened(clock) as run:
        pass
    assert _of(telemetry.span("request")) == {names.RUN_ID: run.id}


def test_without_a_span_around_it_the_first_one_inside_is_the_runs(
    telemetry: Telemetry, tracer: Tracer, clock: FakeClock
) -> None:
    with opened(clock, mode="observe") as run:
        with tracer.start_as_current_span("first"):
            run.cancel("killed")
        with tracer.start_as_current_span("second"):
            pass
    assert _of(telemetry.span("first"))[names.CAUSE] == "killed"
    assert _of(telemetry.span("second")) == {}


def test_the_first_span_is_found_while_other_runs_have_calls_open(
    telemetry: Telemetry, tracer: Tracer, clock: FakeClock
) -> None:
    busy = tracer.start_span("busy", attributes={"gen_ai.operation.name": "chat"})
    with opened(clock) as run, tracer.start_as_current_span("first"):
        pass
    busy.end()
    assert _of(telemetry.span("first")) == {names.RUN_ID: run.id}


def test_a_span_whose_parent_is_in_another_process_is_a_first_span_too(
    telemetry: Telemetry, tracer: Tracer, clock: FakeClock
) -> None:
    remote = SpanContext(1, 2, is_remote=True, trace_flags=TraceFlags(1))
    context = trace.set_span_in_context(NonRecordingSpan(remote))
    with opened(clock) as run:
        tracer.start_span("server", context=context).end()
    assert _of(telemetry.span("server")) == {names.RUN_ID: run.id}


def test_where_the_first_span_inside_is_a_call_it_is_the_runs(
    telemetry: Telemetry, tracer: Tracer, clock: FakeClock
) -> None:
    with opened(clock, mode="observe") as run, chat(tracer) as span:
        run.cancel("disconnect")
        used(span, 1, 1)
    assert _of(telemetry.span("chat"))[names.CAUSE] == "disconnect"
    assert _of(telemetry.span("chat"))[names.RUN_ID] == run.id


def test_the_span_of_a_latent_run_is_found_when_it_begins_to_spend(
    telemetry: Telemetry, tracer: Tracer, clock: FakeClock
) -> None:
    with (
        tracer.start_as_current_span("request"),
        opened(clock, latent=True, server=True) as run,
    ):
        run.cancel("disconnect")
        run.begin_spending()
    assert _of(telemetry.span("request"))[names.CAUSE] == "disconnect"


def test_a_child_run_leaves_the_runs_span_alone(
    telemetry: Telemetry, tracer: Tracer, clock: FakeClock
) -> None:
    with (
        tracer.start_as_current_span("request"),
        opened(clock) as run,
        opened(clock, mode="observe") as child,
        tracer.start_as_current_span("step"),
    ):
        child.cancel("killed")
    assert _of(telemetry.span("request")) == {names.RUN_ID: run.id}
    assert _of(telemetry.span("step")) == {}


def test_a_span_that_ended_before_the_run_was_abandoned_is_left_as_it_was(
    telemetry: Telemetry,
    tracer: Tracer,
    clock: FakeClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING), opened(clock, mode="observe") as run:
        with tracer.start_as_current_span("first"):
            pass
        run.cancel("killed")
    assert _of(telemetry.span("first")) == {names.RUN_ID: run.id}
    assert caplog.text == ""


def test_ending_a_runs_span_twice_is_as_harmless_as_ever(
    telemetry: Telemetry, tracer: Tracer, clock: FakeClock
) -> None:
    with opened(clock, 10):
        span = tracer.start_span("first")
        span.end(end_time=7)
        clock.advance(1)
        span.end()
    assert telemetry.span("first").end_time == 7
    assert _of(telemetry.span("first"))[names.SPAN_OVERRUN] == 0


def test_a_span_that_does_not_record_is_not_taken(clock: FakeClock) -> None:
    def run_of(telemetry: Telemetry) -> Run:
        with opened(clock) as run, telemetry.tracer().start_as_current_span("x"):
            return run

    with instrumented(ALWAYS_OFF) as telemetry:
        assert run_of(telemetry).span is None
