"""What the sampler drops is measured all the same, and nothing more is exported."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace.sampling import (
    ALWAYS_OFF,
    ALWAYS_ON,
    Decision,
    ParentBased,
    Sampler,
    SamplingResult,
    TraceIdRatioBased,
)
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, TraceState
from support.telemetry import abandoned, chat, instrumented, opened, used

from hangup.otel import names
from hangup.otel.sampler import HangupSampler

if TYPE_CHECKING:
    from hangup.testing import FakeClock

CHAT = {"gen_ai.operation.name": "chat"}


class Fixed(Sampler):
    """Always the same result; notes what it was asked."""

    def __init__(self, result: SamplingResult) -> None:
        self.result = result
        self.asked: list[tuple[Any, ...]] = []

    def should_sample(self, *args: Any, **kwargs: Any) -> SamplingResult:
        self.asked.append(args)
        return self.result

    def get_description(self) -> str:
        return "Fixed"


@pytest.mark.parametrize(
    ("decision", "attributes", "expected"),
    [
        (Decision.DROP, CHAT, Decision.RECORD_ONLY),
        (Decision.DROP, {"openinference.span.kind": "LLM"}, Decision.RECORD_ONLY),
        (Decision.DROP, {"http.request.method": "GET"}, Decision.DROP),
        (Decision.DROP, {}, Decision.DROP),
        (Decision.DROP, None, Decision.DROP),
        (Decision.RECORD_ONLY, CHAT, Decision.RECORD_ONLY),
        (Decision.RECORD_AND_SAMPLE, CHAT, Decision.RECORD_AND_SAMPLE),
        (Decision.RECORD_AND_SAMPLE, None, Decision.RECORD_AND_SAMPLE),
    ],
)
def test_only_a_dropped_spending_call_is_decided_otherwise(
    decision: Decision, attributes: Any, expected: Decision
) -> None:
    wrapped = Fixed(SamplingResult(decision))
    asked: tuple[Any, ...] = (
        None,
        7,
        "call",
        trace.SpanKind.CLIENT,
        attributes,
        [],
        None,
    )
    assert HangupSampler(wrapped).should_sample(*asked).decision is expected
    assert wrapped.asked == [asked]


def test_a_lifted_span_keeps_its_attributes_and_trace_state() -> None:
    state = TraceState([("vendor", "x")])
    sampler = HangupSampler(Fixed(SamplingResult(Decision.DROP, None, state)))
    result = sampler.should_sample(None, 7, "call", None, CHAT)
    assert dict(result.attributes or {}) == CHAT
    assert result.trace_state is state


def test_a_result_that_is_not_lifted_is_handed_through_as_it_is() -> None:
    given = SamplingResult(Decision.RECORD_AND_SAMPLE, {"added": "by the sampler"})
    assert HangupSampler(Fixed(given)).should_sample(None, 7, "call") is given


def test_the_description_names_the_wrapped_sampler() -> None:
    assert HangupSampler(ALWAYS_ON).get_description() == (
        "HangupSampler{AlwaysOnSampler}"
    )


@pytest.mark.parametrize(
    "sampler", [ALWAYS_OFF, TraceIdRatioBased(0.0), ParentBased(ALWAYS_OFF)]
)
def test_unsampled_calls_are_measured_refused_and_not_exported(
    clock: FakeClock, sampler: Sampler
) -> None:
    with instrumented(sampler) as telemetry:
        tracer = telemetry.tracer()
        with abandoned(clock, 10):
            with chat(tracer) as span:
                used(span, 56, 5)
            clock.advance(10)
            with chat(tracer):
                pytest.fail("it must not start")
        assert telemetry.tokens("sunk") == (56, 5)
        assert telemetry.total(names.REFUSALS) == 1
        assert telemetry.spans() == ()
        assert telemetry.before.started == telemetry.after.started == ["chat", "chat"]
        assert telemetry.before.balanced
        assert telemetry.after.balanced


def test_an_unsampled_parent_from_another_process_changes_nothing(
    clock: FakeClock,
) -> None:
    remote = SpanContext(1, 2, is_remote=True, trace_flags=TraceFlags(0))
    with instrumented(ParentBased(ALWAYS_ON)) as telemetry:
        tracer = telemetry.tracer()
        with trace.use_span(NonRecordingSpan(remote)), abandoned(clock) as run:
            run.cancel("disconnect")
            with chat(tracer):
                pytest.fail("it must not start")
        assert telemetry.spans() == ()
        assert telemetry.abandoned() == {"disconnect": 1}


def test_spans_that_are_no_calls_are_still_dropped(clock: FakeClock) -> None:
    with instrumented(ALWAYS_OFF) as telemetry:
        with opened(clock), telemetry.tracer().start_as_current_span("x") as span:
            assert not span.is_recording()
        assert telemetry.before.started == []
