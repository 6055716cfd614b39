"""One log event for each run that is over; their sums are what the counters counted."""

from __future__ import annotations

import contextvars
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.telemetry import chat, instrumented, opened, used

from hangup.otel import names
from hangup.spend.fate import Fate
from hangup.testing import FakeClock

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer
    from support.telemetry import Telemetry


CHAT = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m"}


def _tokens(event: Any, fate: str) -> tuple[int, int]:
    return (
        event[f"{names.TOKENS}.{fate}.input"],
        event[f"{names.TOKENS}.{fate}.output"],
    )


def _call(
    tracer: Tracer, clock: FakeClock, took: float, usage: tuple[int, int]
) -> None:
    with chat(tracer) as span:
        clock.advance(took)
        used(span, *usage)


def test_a_delivered_run_is_told_once_with_all_it_spent(
    telemetry: Telemetry, tracer: Tracer, clock: FakeClock
) -> None:
    with opened(clock, 60, tenant="acme") as run:
        _call(tracer, clock, 2, (7, 5))
        _call(tracer, clock, 3, (1, 2))
    [event] = telemetry.closed
    assert event[names.RUN_ID] == run.id
    assert event[names.TENANT] == "acme"
    assert event[names.OUTCOME] == "delivered"
    assert event[names.CAUSE] == names.NONE
    assert event[names.RUN_DURATION] == pytest.approx(5)
    assert event[names.AMENDS] is False
    assert _tokens(event, "delivered") == (8, 7)
    assert event[f"{names.CALLS}.delivered"] == 2


def test_an_abandoned_run_says_why_and_what_was_wasted(
    telemetry: Telemetry, tracer: Tracer, clock: FakeClock
) -> None:
    with opened(clock, mode="observe") as run:
        _call(tracer, clock, 2, (7, 5))
        run.cancel("disconnect", "the tab was closed")
        _call(tracer, clock, 3, (1, 2))
    [event] = telemetry.closed
    assert event[names.OUTCOME] == "abandoned"
    assert event[names.CAUSE] == "disconnect"
    assert event[names.DETAIL] == "the tab was closed"
    assert event[names.RUN_DURATION] == pytest.approx(2)
    assert _tokens(event, "sunk") == (7, 5)
    assert _tokens(event, "wasted") == (1, 2)


def test_a_call_that_ends_after_its_run_is_waited_for(
    telemetry: Telemetry, tracer: Tracer, clock: FakeClock
) -> None:
    with opened(clock, mode="observe") as run:
        span = tracer.start_span("chat", attributes=CHAT)
        clock.advance(1)
        run.cancel("disconnect")
    telemetry.total(names.TOKENS)
    assert telemetry.closed == []
    used(span, 7, 5)
    clock.advance(1)
    span.end()
    telemetry.total(names.TOKENS)
    [event] = telemetry.closed
    assert _tokens(event, "sunk")[0] == 7
    assert _tokens(event, "sunk")[1] + _tokens(event, "wasted")[1] == 5


def test_what_is_spent_after_the_event_comes_in_another_that_amends(
    telemetry: Telemetry, tracer: Tracer, clock: FakeClock
) -> None:
    with opened(clock, mode="observe") as run:
        _call(tracer, clock, 1, (7, 5))
        run.cancel("disconnect")
        later = contextvars.copy_context()
    assert len(telemetry.closed) == 1
    later.run(_call, tracer, clock, 1, (1, 2))
    telemetry.total(names.TOKENS)
    first, second = telemetry.closed
    assert (first[names.AMENDS], second[names.AMENDS]) == (False, True)
    assert _tokens(first, "wasted") == (0, 0)
    assert _tokens(second, "wasted") == (1, 2)
    assert second[names.RUN_ID] == run.id


def test_a_child_with_its_parents_fate_is_in_its_parents_event(
    telemetry: Telemetry, tracer: Tracer, clock: FakeClock
) -> None:
    with opened(clock), opened(clock, name="child"):
        _call(tracer, clock, 1, (7, 5))
    [event] = telemetry.closed
    assert event[names.CHILD] is False
    assert _tokens(event, "delivered") == (7, 5)


def test_a_child_with_a_fate_of_its_own_has_an_event_of_its_own(
    telemetry: Telemetry, tracer: Tracer, clock: FakeClock
) -> None:
    with opened(clock), opened(clock, name="child", mode="observe") as child:
        _call(tracer, clock, 1, (7, 5))
        child.cancel("killed")
    own, parents = telemetry.closed
    assert own[names.CHILD] is True
    assert own[names.CAUSE] == "killed"
    assert _tokens(own, "sunk") == (7, 5)
    assert _tokens(parents, "sunk") == _tokens(parents, "delivered") == (0, 0)


def test_the_event_stands_in_the_trace_of_its_run(
    telemetry: Telemetry, tracer: Tracer, clock: FakeClock
) -> None:
    with tracer.start_as_current_span("request") as span, opened(clock):
        pass
    [record] = telemetry.records
    assert record.trace_id == span.get_span_context().trace_id
    assert record.span_id == span.get_span_context().span_id


def test_without_a_span_of_its_own_the_event_stands_in_no_trace(
    telemetry: Telemetry, tracer: Tracer, clock: FakeClock
) -> None:
    """Not in that of whoever is there when it is told of."""
    with opened(clock, mode="observe") as run:
        later = contextvars.copy_context()
        run.cancel("disconnect")
    later.run(_call, tracer, clock, 1, (1, 2))
    with tracer.start_as_current_span("unrelated") as unrelated:
        telemetry.total(names.TOKENS)
    traces = {record.trace_id for record in telemetry.records}
    assert unrelated.get_span_context().trace_id not in traces


def test_without_a_logs_sdk_nothing_is_missed(clock: FakeClock) -> None:
    with instrumented(logger_provider=None) as telemetry:
        with opened(clock):
            pass
        assert telemetry.closed == []


STEPS = st.lists(
    st.sampled_from(["call", "child", "cancel", "later", "collect"]), max_size=12
)


@given(st.lists(STEPS, max_size=4))
def test_the_sum_of_all_events_is_what_the_counters_counted(
    runs: list[list[str]],
) -> None:
    clock = FakeClock()
    with instrumented() as telemetry:
        tracer = telemetry.tracer()
        for steps in runs:
            left: list[contextvars.Context] = []
            with opened(clock, mode="observe") as run:
                for step in steps:
                    if step == "call":
                        _call(tracer, clock, 1, (3, 4))
                    elif step == "child":
                        with opened(clock, mode="observe") as child:
                            _call(tracer, clock, 1, (5, 6))
                            if run.abandonment is None and len(steps) % 2:
                                child.cancel("killed")
                    elif step == "cancel":
                        run.cancel("disconnect")
                    elif step == "later":
                        left.append(contextvars.copy_context())
                    else:
                        telemetry.total(names.TOKENS)
            for context in left:
                context.run(_call, tracer, clock, 1, (1, 2))
        for fate in Fate:
            told = [_tokens(event, fate.value) for event in telemetry.closed]
            counted = telemetry.tokens(fate.value)
            assert tuple(map(sum, zip((0, 0), *told, strict=True))) == counted
