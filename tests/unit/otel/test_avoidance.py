"""What stopping has kept from being spent: estimated from what calls used before."""

from __future__ import annotations

from typing import TYPE_CHECKING

from support.telemetry import abandoned, chat, opened, used

from hangup.otel import names

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer
    from support.telemetry import Telemetry

    from hangup.testing import FakeClock


def _history(tracer: Tracer, clock: FakeClock, calls: int) -> None:
    with opened(clock):
        for _ in range(calls):
            with chat(tracer) as span:
                clock.advance(1)
                used(span, 100, 50)


def _refused(tracer: Tracer, clock: FakeClock) -> None:
    with abandoned(clock, 1):
        clock.advance(2)
        with chat(tracer):
            raise AssertionError("it was let through")


def test_a_refused_call_counts_what_such_calls_used(
    telemetry: Telemetry, tracer: Tracer, clock: FakeClock
) -> None:
    _history(tracer, clock, 20)
    _refused(tracer, clock)
    labels = {"cause": "deadline", "model": "gpt-4o", "run": "research"}
    assert telemetry.total(names.AVOIDED_TOKENS, **labels) == 150
    assert telemetry.total(names.AVOIDED_COST, **labels) > 0
    assert telemetry.total(names.TOKENS) == 20 * 150


def test_without_a_history_nothing_is_claimed(
    telemetry: Telemetry, tracer: Tracer, clock: FakeClock
) -> None:
    _history(tracer, clock, 2)
    _refused(tracer, clock)
    assert telemetry.total(names.REFUSALS) == 1
    assert telemetry.total(names.AVOIDED_TOKENS) == 0


def test_what_observe_would_have_refused_was_spent_and_is_not_avoided(
    telemetry: Telemetry, tracer: Tracer, clock: FakeClock
) -> None:
    _history(tracer, clock, 20)
    with opened(clock, mode="observe") as run:
        run.cancel("disconnect")
        with chat(tracer) as span:
            used(span, 100, 50)
    assert telemetry.total(names.REFUSALS) == 1
    assert telemetry.total(names.AVOIDED_TOKENS) == 0


def test_only_model_calls_have_a_history(
    telemetry: Telemetry, tracer: Tracer, clock: FakeClock
) -> None:
    _history(tracer, clock, 20)
    with abandoned(clock, 1) as run:
        clock.advance(2)
        run.check()
    assert telemetry.total(names.AVOIDED_TOKENS) == 0
