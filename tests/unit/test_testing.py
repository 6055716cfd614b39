"""The public test tools do what their docstrings say."""

from __future__ import annotations

import pytest
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

import hangup
from hangup import config
from hangup.config import Mode
from hangup.core import guard
from hangup.errors import ConfigError, MisuseError
from hangup.otel import names
from hangup.otel.instrumentor import HangupInstrumentor
from hangup.testing import FakeClock, telemetry

MODEL_CALL = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m"}


def test_timers_fire_in_order_each_at_its_own_instant() -> None:
    clock = FakeClock()
    start = clock.monotonic()
    fired: list[tuple[str, float]] = []

    def note(name: str, after: float) -> None:
        clock.call_at(
            start + after, lambda: fired.append((name, clock.monotonic() - start))
        )

    note("b", 2.0)
    note("a", 1.0)
    note("b2", 2.0)
    note("c", 9.0)
    clock.advance(5.0)
    assert fired == [("a", 1.0), ("b", 2.0), ("b2", 2.0)]
    assert clock.monotonic() == start + 5.0
    assert clock.pending == 1
    clock.advance(4.0)
    assert fired[3:] == [("c", 9.0)]
    assert clock.pending == 0


def test_a_timer_armed_by_a_timer_fires_in_the_same_advance_if_it_is_due() -> None:
    clock = FakeClock()
    start = clock.monotonic()
    fired: list[float] = []

    def again() -> None:
        fired.append(clock.monotonic() - start)
        clock.call_at(clock.monotonic() + 1.0, again)

    clock.call_at(start + 1.0, again)
    clock.advance(3.5)
    assert fired == [1.0, 2.0, 3.0]


def test_a_timer_that_is_due_already_fires_in_the_next_advance() -> None:
    clock = FakeClock()
    fired: list[str] = []
    clock.call_at(clock.monotonic() - 5.0, lambda: fired.append("late"))
    assert fired == []
    clock.advance(0.0)
    assert fired == ["late"]


def test_a_cancelled_timer_does_not_fire_and_is_not_pending() -> None:
    clock = FakeClock()
    fired: list[str] = []
    timer = clock.call_at(clock.monotonic() + 1.0, lambda: fired.append("x"))
    assert clock.pending == 1
    timer.cancel()
    timer.cancel()
    assert clock.pending == 0
    clock.advance(2.0)
    assert fired == []


def test_the_clock_never_steps_back() -> None:
    clock = FakeClock()
    with pytest.raises(ValueError, match="cannot advance by -1"):
        clock.advance(-1.0)
    with pytest.raises(ValueError, match="cannot advance by nan"):
        clock.advance(float("nan"))


def test_two_clocks_cannot_be_mixed_unnoticed() -> None:
    assert abs(FakeClock().monotonic() - FakeClock().monotonic()) > 3_600


def test_the_wall_clock_moves_along_and_steps_alone() -> None:
    clock = FakeClock(wall=1_000.0)
    monotonic = clock.monotonic()
    clock.advance(2.0)
    assert clock.wall() == 1_002.0
    clock.set_wall(500.0)
    assert clock.wall() == 500.0
    clock.advance(1.0)
    assert clock.wall() == 501.0
    assert clock.monotonic() == monotonic + 3.0


def test_the_harness_reads_back_spans_and_metrics() -> None:
    clock = FakeClock()
    with telemetry(mode="enforce") as recorded:
        with hangup.run(name="r", clock=clock):
            with recorded.tracer().start_as_current_span("call", attributes=MODEL_CALL):
                clock.advance(2.0)
            with recorded.tracer().start_as_current_span("call", attributes=MODEL_CALL):
                pass
        assert [span.name for span in recorded.spans()] == ["call", "call"]
        delivered = {names.OUTCOME: "delivered", names.RUN_NAME: "r"}
        assert recorded.value("hangup.runs", delivered) == 1
        assert recorded.value("hangup.runs") == 1
        assert recorded.value("hangup.runs", {names.OUTCOME: "late"}) == 0
        assert recorded.value("hangup.runs", absent="label") == 0
        assert recorded.value("hangup.unknown.calls") == 2
        assert recorded.value("hangup.run.duration", {names.RUN_NAME: "r"}) == 1
        assert recorded.value("no.such.metric") == 0
        assert recorded.points("no.such.metric") == ()
        assert sum(point.sum for point in recorded.points("hangup.run.duration")) == 2.0


def test_the_harness_takes_a_sampler() -> None:
    with telemetry(sampler=ALWAYS_OFF) as recorded:
        with recorded.tracer().start_as_current_span("call", attributes=MODEL_CALL):
            pass
        assert recorded.spans() == ()


def test_the_harness_restores_everything() -> None:
    settings = config.Settings(settle=1.5)
    config.use(settings)
    guard.strict(False)  # noqa: FBT003  a switch
    with pytest.raises(KeyError), telemetry(mode="observe") as recorded:
        assert HangupInstrumentor().is_instrumented_by_opentelemetry
        assert config.current().mode is Mode.OBSERVE
        assert guard._State.strict
        raise KeyError
    assert not HangupInstrumentor().is_instrumented_by_opentelemetry
    assert config.current() is settings
    assert not guard._State.strict
    with recorded.tracer().start_as_current_span("after", attributes=MODEL_CALL):
        pass
    assert recorded.spans() == ()


def test_the_harness_cannot_be_nested() -> None:
    with telemetry():
        with pytest.raises(MisuseError, match="do not nest"), telemetry():
            pass
        assert HangupInstrumentor().is_instrumented_by_opentelemetry


def test_the_harness_names_a_wrong_setting_and_restores() -> None:
    with pytest.raises(ConfigError, match="colour"), telemetry(colour="red"):
        pass
    assert not HangupInstrumentor().is_instrumented_by_opentelemetry
