"""The functions at the top of the package."""

from __future__ import annotations

import math

import pytest

import hangup
from hangup import config
from hangup.config import Mode
from hangup.errors import ConfigError, DeadlineExceeded, Stop
from hangup.otel.instrumentor import HangupInstrumentor
from hangup.testing import FakeClock, Telemetry


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def test_outside_a_run_there_is_all_the_time_and_nothing_to_stop() -> None:
    assert hangup.remaining() == math.inf
    hangup.check()
    hangup.check(needs=1e9)
    assert hangup.current_run() is None


def test_inside_they_ask_the_present_run(clock: FakeClock) -> None:
    with (
        pytest.raises(DeadlineExceeded),
        hangup.run(budget=10.0, clock=clock) as run,
    ):
        assert hangup.current_run() is run
        assert hangup.remaining() == 10.0
        hangup.check(needs=10.0)
        clock.advance(1.0)
        with pytest.raises(Stop):
            hangup.check(needs=10.0)
        hangup.check()


def test_in_a_run_that_is_over_there_is_all_the_time_again(clock: FakeClock) -> None:
    with hangup.run(budget=10.0, clock=clock) as run:
        run.deliver()
        clock.advance(20.0)
        assert hangup.remaining() == math.inf
        hangup.check()
        with hangup.cleanup(budget=2.0, clock=clock):
            assert hangup.remaining() == 2.0


def test_instrument_twice_is_once_and_uninstrument_twice_too() -> None:
    recorded = Telemetry()
    providers = {
        "tracer_provider": recorded.tracer_provider,
        "meter_provider": recorded.meter_provider,
    }
    instrumentor = HangupInstrumentor()
    hangup.instrument(mode="refuse", settle=1.5, **providers)  # type: ignore[arg-type]
    try:
        assert instrumentor.is_instrumented_by_opentelemetry
        for mode, settle in (("enforce", 2.5), (None, 2.5)):
            hangup.instrument(mode=mode, settle=settle, **providers)  # type: ignore[arg-type]
            settings = config.current()
            assert (settings.mode, settings.settle) == (Mode.REFUSE, 1.5)
        with hangup.run() as run:
            assert run.mode is Mode.REFUSE
            hangup.instrument(mode="observe")
            assert str(run.mode) == "observe"
            hangup.instrument(mode="enforce")
            assert str(run.mode) == "observe"
        with hangup.run() as run:
            assert run.mode is Mode.OBSERVE
    finally:
        hangup.uninstrument()
    hangup.uninstrument()
    assert not instrumentor.is_instrumented_by_opentelemetry
    with hangup.run() as run:
        assert run.mode is Mode.ENFORCE


@pytest.mark.parametrize(
    ("environment", "given", "expected"),
    [
        ("observe", "enforce", Mode.OBSERVE),
        ("enforce", "observe", Mode.OBSERVE),
        ("refuse", None, Mode.REFUSE),
    ],
)
def test_of_two_ceilings_the_less_intrusive_wins(
    monkeypatch: pytest.MonkeyPatch,
    environment: str,
    given: str | None,
    expected: Mode,
) -> None:
    monkeypatch.setenv("HANGUP_MODE", environment)
    recorded = Telemetry()
    hangup.instrument(
        mode=given,
        tracer_provider=recorded.tracer_provider,
        meter_provider=recorded.meter_provider,
    )
    try:
        assert config.current().mode is expected
    finally:
        hangup.uninstrument()


@pytest.mark.parametrize(
    ("setting", "value"), [("mode", "loud"), ("budget", -1), ("colour", "red")]
)
def test_a_wrong_setting_is_refused_by_name_and_installs_nothing(
    setting: str, value: object
) -> None:
    with pytest.raises(ConfigError, match=f"{setting}={value!r} cannot be used"):
        hangup.instrument(**{setting: value})  # type: ignore[arg-type]
    assert not HangupInstrumentor().is_instrumented_by_opentelemetry


def test_a_wrong_variable_is_refused_by_name_where_hangup_is_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HANGUP_SETTLE", "soon")
    with pytest.raises(ConfigError, match="HANGUP_SETTLE='soon' cannot be used"):
        hangup.instrument()
    assert not HangupInstrumentor().is_instrumented_by_opentelemetry
