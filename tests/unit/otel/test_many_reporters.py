"""One call that several layers report: counted once, whatever stands around what.

The shapes are those that the libraries of ``tests/matrix`` make, without the libraries.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest
from support.telemetry import agent, chat, opened, tool, used

from hangup.errors import DeadlineExceeded
from hangup.otel import names

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer
    from support.telemetry import Telemetry

    from hangup.testing import FakeClock

_CHAT = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "gpt-4o"}


def _metered(telemetry: Telemetry) -> tuple[float, float]:
    return (
        telemetry.total(names.METERED_TOKENS, type="input"),
        telemetry.total(names.METERED_TOKENS, type="output"),
    )


def _models(telemetry: Telemetry) -> float:
    return telemetry.total(names.CALLS, kind="inference")


def _sums(span: Any, tokens_in: int, tokens_out: int) -> None:
    """Report the sum of what an agent's calls used, as pydantic-ai does."""
    span.set_attribute("gen_ai.aggregated_usage.input_tokens", tokens_in)
    span.set_attribute("gen_ai.aggregated_usage.output_tokens", tokens_out)


def _tells(tracer: Tracer, tokens_in: int, tokens_out: int) -> None:
    """Tell of a stream that is over, as logfire does."""
    tracer.start_span(
        "streaming response from 'gpt-4o' took 1.00s",
        attributes={
            **_CHAT,
            "logfire.span_type": "log",
            "gen_ai.usage.input_tokens": tokens_in,
            "gen_ai.usage.output_tokens": tokens_out,
        },
    ).end()


@pytest.mark.parametrize("layers", [2, 1])
def test_d4_one_call_many_reporters(
    telemetry: Telemetry, tracer: Tracer, clock: FakeClock, layers: int
) -> None:
    def call(tokens_in: int, tokens_out: int) -> None:
        with contextlib.ExitStack() as stack:
            for _ in range(layers):
                span = stack.enter_context(chat(tracer))
                used(span, tokens_in, tokens_out)

    with opened(clock, mode="observe") as run:
        run.cancel("disconnect")  # and the tool goes on
        clock.advance(1)
        with agent(tracer) as outer:
            call(56, 5)
            with tool(tracer, "delegate"), agent(tracer, "helper") as inner:
                call(10, 10)
                _sums(inner, 10, 10)
            call(57, 6)
            _sums(outer, 123, 21)
    assert telemetry.tokens("wasted") == _metered(telemetry) == (123, 21)
    assert _models(telemetry) == 3


def test_a_model_span_around_an_agent_repeats_what_its_calls_used(
    telemetry: Telemetry, tracer: Tracer, clock: FakeClock
) -> None:
    with opened(clock), chat(tracer) as outer:
        with agent(tracer):
            for tokens in ((56, 5), (57, 6)):
                with chat(tracer) as inner:
                    used(inner, *tokens)
        used(outer, 113, 11)
    assert telemetry.tokens("delivered") == _metered(telemetry) == (113, 11)


def test_a_model_span_around_an_agent_is_no_call_of_its_own(
    telemetry: Telemetry, tracer: Tracer, clock: FakeClock
) -> None:
    with opened(clock), chat(tracer) as outer:
        with agent(tracer) as middle:
            with chat(tracer) as inner:
                used(inner, 56, 5)
            used(middle, 56, 5)
        used(outer, 56, 5)
    assert telemetry.tokens("delivered") == _metered(telemetry) == (56, 5)
    assert telemetry.total(names.CALLS, kind="agent") == 1
    assert _models(telemetry) == 1


def test_an_agent_that_ends_before_the_stream_of_its_call_is_no_second_reporter(
    telemetry: Telemetry, tracer: Tracer, clock: FakeClock
) -> None:
    with opened(clock):
        with agent(tracer) as outer:
            stream = tracer.start_span("chat", attributes=_CHAT)
            _sums(outer, 56, 5)
        clock.advance(1)
        used(stream, 56, 5)
        stream.end()
    assert telemetry.tokens("delivered") == _metered(telemetry) == (56, 5)
    assert _models(telemetry) == 1


def test_a_model_span_that_ends_before_the_stream_inside_it_is_no_second_call(
    telemetry: Telemetry, tracer: Tracer, clock: FakeClock
) -> None:
    with opened(clock):
        with chat(tracer):  # a framework's, and it knows nothing
            stream = tracer.start_span("chat", attributes=_CHAT)
        clock.advance(1)
        used(stream, 56, 5)
        stream.end()
    assert telemetry.tokens("delivered") == _metered(telemetry) == (56, 5)
    assert telemetry.total(names.UNKNOWN_CALLS) == 0
    assert _models(telemetry) == 1


@pytest.mark.parametrize("repeated", ["gen_ai.usage", "gen_ai.aggregated_usage"])
def test_a_tool_that_repeats_what_its_model_call_used_adds_nothing(
    telemetry: Telemetry, tracer: Tracer, clock: FakeClock, repeated: str
) -> None:
    with opened(clock), tool(tracer, "summarise") as outer:
        with chat(tracer) as inner:
            used(inner, 56, 5)
        outer.set_attribute(f"{repeated}.input_tokens", 56)
        outer.set_attribute(f"{repeated}.output_tokens", 5)
    assert telemetry.tokens("delivered") == _metered(telemetry) == (56, 5)
    assert telemetry.total(names.CALLS, kind="tool") == 1


def test_what_an_agent_used_beyond_its_reported_calls_is_counted(
    telemetry: Telemetry, tracer: Tracer, clock: FakeClock
) -> None:
    with opened(clock), agent(tracer) as outer:
        with chat(tracer) as inner:
            used(inner, 56, 5)
        _sums(outer, 113, 11)
    assert telemetry.tokens("delivered") == _metered(telemetry) == (113, 11)


def test_a_span_that_tells_of_a_stream_that_is_over_is_no_second_call(
    telemetry: Telemetry, tracer: Tracer, clock: FakeClock
) -> None:
    with opened(clock):
        with chat(tracer) as call:
            used(call, 56, 5)  # as the wire may have
        _tells(tracer, 56, 5)
    assert telemetry.tokens("delivered") == _metered(telemetry) == (56, 5)
    assert _models(telemetry) == 1


def test_a_span_that_tells_of_a_stream_that_is_over_is_never_refused(
    telemetry: Telemetry, tracer: Tracer, clock: FakeClock
) -> None:
    with pytest.raises(DeadlineExceeded), opened(clock, 10) as run:
        with chat(tracer):
            clock.advance(11)
        _tells(tracer, 56, 5)  # raises nothing
        raise run.error()
    assert telemetry.total(names.REFUSALS) == 0


def test_a_span_that_tells_of_a_stream_that_is_over_counts_nothing_by_itself(
    telemetry: Telemetry, tracer: Tracer, clock: FakeClock
) -> None:
    """Where no wire is seen, its call stays of unknown usage: never 0, never two."""
    with opened(clock):
        with chat(tracer):
            pass  # the stream has begun, and nothing is known
        clock.advance(1)
        _tells(tracer, 56, 5)
    assert telemetry.tokens("delivered") == _metered(telemetry) == (0, 0)
    assert telemetry.total(names.UNKNOWN_CALLS) == 1
    assert _models(telemetry) == 1


def test_a_reporter_that_does_not_make_its_span_current_is_no_second_call(
    telemetry: Telemetry, tracer: Tracer, clock: FakeClock
) -> None:
    # Traceloop's anthropic, and the native span of the same call: from different
    # scopes, under one parent, in one task, the second before anything came of the
    # first.
    with opened(clock), tracer.start_as_current_span("handler"):
        outer = telemetry.tracer("traceloop").start_span("chat", attributes=_CHAT)
        with chat(telemetry.tracer("native"), name="create") as inner:
            used(inner, 56, 5)
        used(outer, 56, 5)
        outer.end()
    assert telemetry.tokens("delivered") == _metered(telemetry) == (56, 5)
    assert _models(telemetry) == 1


@pytest.mark.parametrize("same_parent", [True, False])
def test_two_calls_of_one_instrumentation_at_a_time_are_two(
    telemetry: Telemetry, tracer: Tracer, clock: FakeClock, *, same_parent: bool
) -> None:
    with opened(clock), contextlib.ExitStack() as stack:
        one = tracer.start_span("chat", attributes=_CHAT)
        if not same_parent:
            stack.enter_context(tracer.start_as_current_span("step"))
        two = tracer.start_span("chat", attributes=_CHAT)
        for span, tokens in ((two, (10, 10)), (one, (56, 5))):
            used(span, *tokens)
            span.end()
    assert telemetry.tokens("delivered") == _metered(telemetry) == (66, 15)
    assert _models(telemetry) == 2
