"""Each call counted once, whoever reports it; unknown stays unknown; all bounded."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry import context as context_api
from opentelemetry import trace
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from support.telemetry import agent, chat, instrumented, opened, tool, used

from hangup.otel import calls, names, recorder
from hangup.otel.call import Call
from hangup.otel.instrumentor import HangupInstrumentor

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer
    from support.telemetry import Telemetry

    from hangup.testing import FakeClock


def _metered(telemetry: Telemetry) -> tuple[float, float]:
    return (
        telemetry.total(names.METERED_TOKENS, type="input"),
        telemetry.total(names.METERED_TOKENS, type="output"),
    )


def _unknown(telemetry: Telemetry) -> float:
    return telemetry.total(names.UNKNOWN_CALLS)


def _recorder() -> recorder.Recorder:
    found: recorder.Recorder = HangupInstrumentor()._recorder
    return found


def _standing() -> dict[int, Call]:
    """Return the open calls, and the open spans in them, by id."""
    return _recorder().live | _recorder()._nested


def _aggregated(span: Any, tokens_in: int, tokens_out: int) -> None:
    span.set_attribute("gen_ai.aggregated_usage.input_tokens", tokens_in)
    span.set_attribute("gen_ai.aggregated_usage.output_tokens", tokens_out)


def test_a_call_is_attributed_and_metered_alike(
    telemetry: Telemetry, tracer: Tracer, clock: FakeClock
) -> None:
    with opened(clock), chat(tracer) as span:
        used(span, 56, 5)
    assert telemetry.tokens("delivered", model="gpt-4o", run="research") == (56, 5)
    assert telemetry.total(names.METERED_TOKENS, in_run=True, model="gpt-4o") == 61
    assert telemetry.total(names.CALLS, kind="inference", fate="delivered") == 1
    assert _unknown(telemetry) == 0


def test_a_call_outside_any_run_is_metered_only(
    telemetry: Telemetry, tracer: Tracer
) -> None:
    with chat(tracer) as span:
        used(span, 56, 5)
    assert telemetry.total(names.METERED_TOKENS, in_run=False) == 61
    assert telemetry.total(names.METERED_TOKENS, in_run=True) == 0
    assert telemetry.total(names.TOKENS) == 0


# One call, many reporters


def test_of_two_reporters_of_a_call_the_innermost_wins(
    telemetry: Telemetry, tracer: Tracer, clock: FakeClock
) -> None:
    with (
        opened(clock),
        chat(tracer, name="framework") as outer,
        tracer.start_as_current_span("retry"),
        chat(tracer, name="provider") as inner,
    ):
        used(inner, 56, 5)
        used(outer, 60, 9)
    assert telemetry.tokens("delivered") == _metered(telemetry) == (56, 5)
    assert telemetry.total(names.CALLS) == 1


def test_three_layers_are_still_one_call(
    telemetry: Telemetry, tracer: Tracer, clock: FakeClock
) -> None:
    with opened(clock), chat(tracer) as a, chat(tracer) as b, chat(tracer) as c:
        for span in (a, b, c):
            used(span, 56, 5)
    assert telemetry.tokens("delivered") == _metered(telemetry) == (56, 5)
    assert telemetry.total(names.CALLS) == 1


def test_where_the_innermost_reporter_says_nothing_the_one_around_it_counts(
    telemetry: Telemetry, tracer: Tracer, clock: FakeClock
) -> None:
    with opened(clock), chat(tracer) as outer:
        with chat(tracer):
            pass
        used(outer, 56, 5)
    assert telemetry.tokens("delivered") == _metered(telemetry) == (56, 5)
    assert telemetry.total(names.CALLS) == 1
    assert _unknown(telemetry) == 0


def test_a_model_call_of_a_tool_inside_a_model_call_is_a_call_of_its_own(
    telemetry: Telemetry, tracer: Tracer, clock: FakeClock
) -> None:
    with opened(clock), chat(tracer) as outer:
        with tool(tracer), chat(tracer) as inner:
            used(inner, 10, 10)
        used(outer, 56, 5)
    assert telemetry.tokens("delivered") == _metered(telemetry) == (66, 15)
    assert telemetry.total(names.CALLS, kind="inference") == 2
    assert telemetry.total(names.CALLS, kind="tool") == 1


def test_embeddings_inside_a_model_call_are_a_call_of_their_own(
    telemetry: Telemetry, tracer: Tracer, clock: FakeClock
) -> None:
    embeddings = {"gen_ai.operation.name": "embeddings"}
    with opened(clock), chat(tracer) as outer:
        with tracer.start_as_current_span("embed", attributes=embeddings) as inner:
            used(inner, 7, None)
        used(outer, 56, 5)
    assert telemetry.tokens("delivered") == _metered(telemetry) == (63, 5)
    assert _unknown(telemetry) == 0


@pytest.mark.parametrize("reporters", ["both", "framework", "provider"])
def test_agents_repeat_their_calls_and_nobody_counts_them_twice(
    telemetry: Telemetry, tracer: Tracer, clock: FakeClock, reporters: str
) -> None:
    """Case d4: 56/5 and 57/6, and a delegate's 10/10, all after the user left."""

    def call(tokens_in: int, tokens_out: int) -> None:
        if reporters == "both":
            with chat(tracer, name="langchain") as outer:
                with chat(tracer, name="openai") as inner:
                    used(inner, tokens_in, tokens_out)
                used(outer, tokens_in, tokens_out)
        else:
            with chat(tracer, name=reporters) as span:
                used(span, tokens_in, tokens_out)
        clock.advance(1)

    with opened(clock, mode="observe") as run:
        run.cancel("disconnect")
        clock.advance(1)
        with agent(tracer) as outer:
            call(56, 5)
            with tool(tracer, "delegate"), agent(tracer, "delegate") as inner:
                call(10, 10)
                _aggregated(inner, 10, 10)
            call(57, 6)
            _aggregated(outer, 123, 21)
    assert telemetry.tokens("wasted") == _metered(telemetry) == (123, 21)
    assert telemetry.total(names.TOKENS) == 144
    assert telemetry.total(names.CALLS, kind="inference") == 3
    assert _unknown(telemetry) == 0


def test_an_agent_counts_what_no_descendant_reported(
    telemetry: Telemetry, tracer: Tracer, clock: FakeClock
) -> None:
    with opened(clock), agent(tracer) as outer:
        with chat(tracer) as inner:
            used(inner, 56, 5)
        _aggregated(outer, 113, 11)
    assert telemetry.tokens("delivered") == _metered(telemetry) == (113, 11)
    assert telemetry.total(names.METERED_TOKENS, model="unknown") == 63


def test_an_agent_is_never_an_unknown_call(
    telemetry: Telemetry, tracer: Tracer, clock: FakeClock
) -> None:
    with opened(clock), agent(tracer), tool(tracer):
        pass
    assert _unknown(telemetry) == 0
    assert telemetry.total(names.CALLS, kind="agent") == 1


# Unknown


def test_a_call_without_usage_is_counted_as_unknown_with_a_bound(
    telemetry: Telemetry, tracer: Tracer, clock: FakeClock
) -> None:
    with opened(clock), chat(tracer, more={"gen_ai.request.max_tokens": 300}):
        clock.advance(2)
    with chat(tracer, model="other-model"):
        pass
    assert telemetry.total(names.UNKNOWN_CALLS, model="gpt-4o") == 1
    assert telemetry.total(names.UNKNOWN_CALLS, model="other-model") == 1
    assert telemetry.total(names.UNKNOWN_BOUND, model="gpt-4o") == 300
    assert telemetry.total(names.UNKNOWN_BOUND) == 300
    assert telemetry.total(names.TOKENS) == sum(_metered(telemetry)) == 0
    assert telemetry.total(names.CALLS, fate="delivered") == 1
    assert telemetry.total(names.CALL_TIME, fate="delivered") == 2


def test_an_explicit_zero_stays_a_zero(
    telemetry: Telemetry, tracer: Tracer, clock: FakeClock
) -> None:
    with opened(clock), chat(tracer) as span:
        used(span, 0, 0)
    assert _unknown(telemetry) == 0
    assert telemetry.total(names.CALLS) == 1
    assert telemetry.total(names.TOKENS) == 0


@pytest.mark.parametrize("known", [(25, None), (None, 7)])
def test_a_half_reported_call_counts_its_half_and_is_unknown_for_the_rest(
    telemetry: Telemetry,
    tracer: Tracer,
    clock: FakeClock,
    known: tuple[int | None, int | None],
) -> None:
    with opened(clock), chat(tracer) as span:
        used(span, *known)
    assert telemetry.tokens("delivered") == (known[0] or 0, known[1] or 0)
    assert _unknown(telemetry) == 1


def test_silent_reporters_of_one_call_are_one_unknown_call(
    telemetry: Telemetry, tracer: Tracer, clock: FakeClock
) -> None:
    with opened(clock), chat(tracer), chat(tracer), chat(tracer):
        pass
    assert _unknown(telemetry) == 1
    assert telemetry.total(names.CALLS) == 1


def test_an_attempt_that_said_nothing_is_unknown_although_its_retry_said_all(
    telemetry: Telemetry, tracer: Tracer, clock: FakeClock
) -> None:
    with opened(clock), chat(tracer, name="framework") as outer:
        with chat(tracer, name="attempt 1"):
            pass
        with chat(tracer, name="attempt 2") as second:
            used(second, 56, 5)
        used(outer, 56, 5)
    assert telemetry.tokens("delivered") == (56, 5)
    assert _unknown(telemetry) == 1


# The model


def test_a_model_that_is_named_at_the_end_only_is_found_there(
    telemetry: Telemetry, tracer: Tracer, clock: FakeClock
) -> None:
    with opened(clock), chat(tracer, model=None) as span:
        span.set_attribute("gen_ai.response.model", "gpt-4o-2026")
        used(span, 1, 2)
    assert telemetry.tokens("delivered", model="gpt-4o-2026") == (1, 2)


def test_the_model_asked_for_is_the_label_whatever_answered(
    telemetry: Telemetry, tracer: Tracer, clock: FakeClock
) -> None:
    with opened(clock), chat(tracer) as span:
        span.set_attribute("gen_ai.response.model", "gpt-4o-2026")
        used(span, 1, 2)
    assert telemetry.tokens("delivered", model="gpt-4o") == (1, 2)


# Bounds


def test_a_span_that_never_ends_is_given_up_and_its_call_counted_as_unknown(
    telemetry: Telemetry,
    tracer: Tracer,
    clock: FakeClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recorder, "_MOST_OPEN", 3)
    attributes = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m"}
    with opened(clock) as run:
        leaked = [tracer.start_span("leaked", attributes=attributes) for _ in range(10)]
        assert _recorder().open_calls == run.open_calls == 3
        assert len(_standing()) == 3
        assert _unknown(telemetry) == 7
        used(leaked[0], 5, 5)
        leaked[0].end()  # too late: it was given up
        used(leaked[9], 6, 7)
        leaked[9].end()
    assert _unknown(telemetry) == 7
    assert telemetry.tokens("delivered") == (6, 7)
    assert telemetry.total(names.CALLS) == 8
    for span in leaked[7:9]:
        span.end()
    assert _recorder().open_calls == 0
    assert _standing() == {}


@pytest.mark.parametrize("sampled", [True, False])
def test_spans_inside_a_call_that_never_ends_are_bounded(
    monkeypatch: pytest.MonkeyPatch, *, sampled: bool
) -> None:
    monkeypatch.setattr(recorder, "_MOST_NESTED", 5)
    with instrumented(None if sampled else ALWAYS_OFF) as telemetry:
        tracer = telemetry.tracer()
        with tool(tracer) as leaked:
            inner = [tracer.start_span("inner") for _ in range(100)]
            assert len(_standing()) == 6
            for span in inner:
                span.end()
            leaked.end()
        assert _standing() == {}


def test_a_span_that_has_ended_leaves_nothing_behind(
    telemetry: Telemetry, tracer: Tracer
) -> None:
    with tool(tracer):
        for _ in range(100):
            with tracer.start_as_current_span("inner"):
                pass
        [call] = _recorder().live.values()
        assert call.nested == {}
        assert len(_standing()) == 1
    assert _standing() == {}


def test_a_span_that_begins_while_its_call_ends_elsewhere_leaves_nothing_behind(
    telemetry: Telemetry, tracer: Tracer, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = tracer.start_span("chat", attributes={"gen_ai.operation.name": "chat"})
    inside = trace.set_span_in_context(call)

    class EndsMeanwhile(dict[int, Call]):
        def __setitem__(self, span_id: int, call_around: Call) -> None:
            elsewhere = threading.Thread(target=call.end)
            elsewhere.start()
            elsewhere.join()
            super().__setitem__(span_id, call_around)

    monkeypatch.setattr(_recorder(), "_nested", EndsMeanwhile())
    inner = tracer.start_span("inner", inside)
    assert _standing() == {}
    inner.end()
    assert _standing() == {}


def test_ancestry_is_followed_across_spans_that_the_sampler_dropped(
    clock: FakeClock,
) -> None:
    with instrumented(ALWAYS_OFF) as telemetry:
        tracer = telemetry.tracer()
        with (
            opened(clock),
            chat(tracer) as outer,
            tracer.start_as_current_span("dropped"),
            chat(tracer) as inner,
        ):
            assert outer.is_recording()
            used(inner, 56, 5)
            used(outer, 56, 5)
        assert telemetry.tokens("delivered") == (56, 5)
        assert telemetry.spans() == ()


# Threads


def test_calls_on_many_threads_are_all_counted_once(
    telemetry: Telemetry, tracer: Tracer, clock: FakeClock
) -> None:
    with opened(clock) as run:
        context = context_api.get_current()

        def serve() -> None:
            context_api.attach(context)
            for _ in range(50):
                with agent(tracer), chat(tracer), chat(tracer) as inner:
                    used(inner, 2, 3)

        threads = [threading.Thread(target=serve) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert run.open_calls == 0
    assert telemetry.tokens("delivered") == _metered(telemetry) == (800, 1200)
    assert telemetry.total(names.CALLS, kind=calls.INFERENCE) == 400
    assert _standing() == {}


def test_open_calls_of_an_abandoned_run_carry_its_cause(
    telemetry: Telemetry, tracer: Tracer, clock: FakeClock
) -> None:
    with (
        opened(clock),
        chat(tracer, name="theirs"),
        opened(clock) as child,
        chat(tracer, name="ours"),
    ):
        child.cancel("killed")
    causes = {
        span.name: (span.attributes or {}).get(names.CAUSE)
        for span in telemetry.spans()
    }
    assert causes == {"ours": "killed", "theirs": None}
