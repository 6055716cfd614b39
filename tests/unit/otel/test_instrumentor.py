"""Installing hangup and taking it off again, from code and from the environment."""

from __future__ import annotations

import dataclasses
import logging
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import Span, Tracer, TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from support.telemetry import Telemetry, abandoned, chat, instrumented, opened, used

import hangup
from hangup import config
from hangup.config import Mode
from hangup.core import current, registry
from hangup.errors import ConfigError
from hangup.otel import names
from hangup.otel.instrumentor import HangupInstrumentor
from hangup.otel.sampler import HangupSampler

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hangup.testing import FakeClock


@pytest.fixture(autouse=True)
def _uninstalled() -> Iterator[None]:
    yield
    hangup.uninstrument()


@pytest.fixture
def providers() -> Iterator[tuple[TracerProvider, MeterProvider]]:
    tracers = TracerProvider(shutdown_on_exit=False)
    meters = MeterProvider([InMemoryMetricReader()], shutdown_on_exit=False)
    yield tracers, meters
    tracers.shutdown()
    meters.shutdown()


def _install(providers: tuple[TracerProvider, MeterProvider], **settings: Any) -> None:
    tracers, meters = providers
    hangup.instrument(tracer_provider=tracers, meter_provider=meters, **settings)


def _footprint(tracers: TracerProvider) -> tuple[Any, ...]:
    """Everything that installing hangup changes."""
    return (
        Tracer.start_span,
        Span.set_status,
        Span.record_exception,
        tracers._active_span_processor._span_processors,
        tracers.sampler,
        tuple(tracer.sampler for tracer in tracers._tracers.values()),
        registry._registry.observers,
        current._Bridge.value,
        config._Current.value,
    )


class _Proxy(trace.TracerProvider):
    """A provider that hands everything to another, as logfire's does."""

    def __init__(self, provider: TracerProvider) -> None:
        self.provider = provider

    def get_tracer(self, *args: Any, **kwargs: Any) -> trace.Tracer:
        return self.provider.get_tracer(*args, **kwargs)

    def add_span_processor(self, processor: Any) -> None:
        self.provider.add_span_processor(processor)


def test_the_provider_behind_a_proxy_is_watched_and_let_go_again(
    providers: tuple[TracerProvider, MeterProvider],
) -> None:
    tracers, meters = providers
    before = _footprint(tracers)
    hangup.instrument(tracer_provider=_Proxy(tracers), meter_provider=meters)
    processors = tracers._active_span_processor._span_processors
    assert len(processors) == 1
    assert isinstance(tracers.sampler, HangupSampler)
    hangup.uninstrument()
    assert _footprint(tracers) == before


def test_taking_it_off_restores_everything(
    providers: tuple[TracerProvider, MeterProvider],
) -> None:
    tracers, _ = providers
    tracers.get_tracer("made before")
    before = _footprint(tracers)
    for _ in range(3):
        _install(providers)
        assert _footprint(tracers) != before
        tracers.get_tracer("made meanwhile")
        hangup.uninstrument()
    restored = _footprint(tracers)
    assert restored[:5] == before[:5]
    assert set(restored[5]) == {tracers.sampler}
    assert restored[6:] == before[6:]
    hangup.uninstrument()
    assert _footprint(tracers) == restored


def test_installing_twice_changes_nothing_the_second_time(
    providers: tuple[TracerProvider, MeterProvider], clock: FakeClock
) -> None:
    tracers, _ = providers
    _install(providers)
    once = _footprint(tracers)
    _install(providers, settle=once[-1].settle + 1)
    assert _footprint(tracers) == once
    assert config.current().mode is None


def test_installing_twice_may_lower_the_mode_and_changes_nothing_else(
    providers: tuple[TracerProvider, MeterProvider],
) -> None:
    tracers, _ = providers
    _install(providers)
    once = _footprint(tracers)
    _install(providers, mode="observe", settle=1)
    assert _footprint(tracers)[:-1] == once[:-1]
    assert config.current() == dataclasses.replace(once[-1], mode="observe")


def test_existing_tracers_are_covered(clock: FakeClock) -> None:
    telemetry = Telemetry(ALWAYS_OFF)
    old = telemetry.tracer("made before")
    hangup.instrument(
        tracer_provider=telemetry.tracer_provider,
        meter_provider=telemetry.meter_provider,
    )
    new = telemetry.tracer("made after")
    for tracer in (old, new):
        with abandoned(clock) as run:
            with chat(tracer) as span:
                used(span, 1, 1)
            run.cancel("killed")
            with chat(tracer):
                pytest.fail("it must not start")
    assert telemetry.tokens("sunk") == (2, 2)


def test_a_call_that_was_open_when_hangup_left_does_no_harm(clock: FakeClock) -> None:
    with instrumented() as telemetry:
        tracer = telemetry.tracer()
        with opened(clock), chat(tracer) as span:
            hangup.uninstrument()
            used(span, 1, 1)
            with chat(tracer, name="later"):
                pass
        assert [one.name for one in telemetry.spans()] == ["later", "chat"]


def test_what_others_wrapped_around_us_stays_and_our_part_hands_through(
    providers: tuple[TracerProvider, MeterProvider],
    monkeypatch: pytest.MonkeyPatch,
    clock: FakeClock,
) -> None:
    tracers, _ = providers
    _install(providers)
    ours = Tracer.start_span
    seen: list[str] = []

    def theirs(self: Tracer, name: str, *args: Any, **kwargs: Any) -> Any:
        seen.append(name)
        return ours(self, name, *args, **kwargs)

    monkeypatch.setattr(Tracer, "start_span", theirs)
    hangup.uninstrument()
    assert Tracer.start_span is theirs
    with opened(clock, 1):
        clock.advance(2)
        with chat(tracers.get_tracer("x")):
            pass
    _install(providers)
    with abandoned(clock, 1):
        clock.advance(2)
        with chat(tracers.get_tracer("x"), name="refused"):
            pytest.fail("it must not start")
    assert seen == ["chat", "refused"]
    hangup.uninstrument()


def test_numbers_go_on_where_they_stopped_on_the_same_meters(clock: FakeClock) -> None:
    telemetry = Telemetry()
    for mode in ("observe", "enforce"):
        hangup.instrument(
            mode=mode,
            tracer_provider=telemetry.tracer_provider,
            meter_provider=telemetry.meter_provider,
        )
        with opened(clock), chat(telemetry.tracer()) as span:
            used(span, 1, 2)
        assert telemetry.total(names.INFO, mode=mode) == 1
        hangup.uninstrument()
    assert telemetry.tokens("delivered") == (2, 4)
    assert telemetry.total(names.METERED_TOKENS) == 6
    assert telemetry.total(names.INFO) == 1


# Without an SDK


def test_without_an_sdk_provider_it_says_so_once_and_stopping_works(
    caplog: pytest.LogCaptureFixture, clock: FakeClock
) -> None:
    start_span = trace.NoOpTracer.start_span
    with caplog.at_level(logging.WARNING, "hangup"):
        hangup.instrument(tracer_provider=trace.NoOpTracerProvider())
        tracer = trace.NoOpTracer()
        for start in (tracer.start_span, tracer.start_as_current_span):
            with abandoned(clock, 1):
                with chat(tracer):
                    clock.advance(2)
                tracer.start_span("SELECT").end()
                start("chat", attributes={"gen_ai.operation.name": "chat"})
                pytest.fail("it must not start")
    [record] = [one for one in caplog.records if one.name.startswith("hangup")]
    assert "no OpenTelemetry SDK tracer provider (NoOpTracerProvider)" in record.message
    hangup.uninstrument()
    assert trace.NoOpTracer.start_span is start_span


def test_with_the_sdk_disabled_there_are_no_numbers_and_stopping_works(
    monkeypatch: pytest.MonkeyPatch, clock: FakeClock
) -> None:
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    with instrumented() as telemetry:
        with abandoned(clock, latent=True, server=True) as run:
            run.cancel("disconnect")
            with chat(telemetry.tracer()):
                pytest.fail("it must not start")
        assert run.cause == "disconnect"
        assert telemetry.spans() == ()
        assert telemetry.total(names.TOKENS) == 0


# Modes: the environment, the keyword, and code


@pytest.mark.parametrize(
    ("environment", "keyword", "code", "mode"),
    [
        (None, None, None, "enforce"),
        (None, None, "observe", "observe"),
        (None, "refuse", None, "refuse"),
        (None, "refuse", "observe", "observe"),
        (None, "refuse", "enforce", "refuse"),
        ("observe", None, None, "observe"),
        ("observe", None, "enforce", "observe"),
        ("observe", "enforce", "enforce", "observe"),
        ("enforce", "observe", "enforce", "observe"),
        ("enforce", None, "refuse", "refuse"),
        ("ENFORCE", "enforce", "enforce", "enforce"),
        ("", None, None, "enforce"),
    ],
)
def test_of_the_modes_given_the_least_intrusive_wins(  # noqa: PLR0913, PLR0917  a table
    providers: tuple[TracerProvider, MeterProvider],
    monkeypatch: pytest.MonkeyPatch,
    environment: str | None,
    keyword: str | None,
    code: str | None,
    mode: str,
) -> None:
    if environment is not None:
        monkeypatch.setenv("HANGUP_MODE", environment)
    _install(providers, mode=keyword)
    with hangup.run(mode=code) as run:
        assert run.mode == mode


@pytest.mark.parametrize(
    ("environment", "keyword"),
    [("off", None), ("off", "enforce"), (None, "off"), ("enforce", "off")],
)
def test_off_installs_nothing_and_stops_nothing(
    providers: tuple[TracerProvider, MeterProvider],
    monkeypatch: pytest.MonkeyPatch,
    clock: FakeClock,
    environment: str | None,
    keyword: str | None,
) -> None:
    if environment is not None:
        monkeypatch.setenv("HANGUP_MODE", environment)
    tracers, _ = providers
    before = _footprint(tracers)[:-1]
    _install(providers, mode=keyword)
    assert _footprint(tracers)[:-1] == before
    with opened(clock, 1) as run:
        clock.advance(2)
        with chat(tracers.get_tracer("x")):
            pass
        assert run.mode is Mode.OFF
    hangup.uninstrument()
    monkeypatch.delenv("HANGUP_MODE", raising=False)
    assert config.current().mode is None


@pytest.mark.parametrize(
    "settings", [{"mode": "on"}, {"bugdet": 3}, {"budget": -1}, {"settle": "soon"}]
)
def test_a_wrong_setting_is_an_error_where_it_is_given_and_installs_nothing(
    providers: tuple[TracerProvider, MeterProvider], settings: dict[str, Any]
) -> None:
    tracers, _ = providers
    before = _footprint(tracers)
    with pytest.raises(ConfigError, match=next(iter(settings))):
        _install(providers, **settings)
    assert _footprint(tracers) == before


def test_a_wrong_variable_is_an_error_that_names_it(
    providers: tuple[TracerProvider, MeterProvider], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HANGUP_MODE", "enfroce")
    with pytest.raises(ConfigError, match=r"HANGUP_MODE='enfroce'.*enforce"):
        _install(providers)


def test_the_instrumentation_is_found_by_its_entry_point() -> None:
    [found] = entry_points(group="opentelemetry_instrumentor", name="hangup")
    assert found.load() is HangupInstrumentor
    assert list(HangupInstrumentor().instrumentation_dependencies()) == []


def test_the_sampler_is_wrapped_once_and_asked_for_by_its_own_name(
    providers: tuple[TracerProvider, MeterProvider],
) -> None:
    tracers, _ = providers
    inner = tracers.sampler
    _install(providers)
    assert isinstance(tracers.sampler, HangupSampler)
    assert tracers.sampler.wrapped is inner
