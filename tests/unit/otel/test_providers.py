"""Whoever sets telemetry up, before hangup or after it, has their calls measured."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry import trace
from opentelemetry.metrics._internal import _ProxyMeterProvider
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from support.telemetry import chat, used

import hangup
from hangup import config
from hangup.config import Mode
from hangup.errors import RunAbandoned
from hangup.otel import names
from hangup.otel.instrumentor import HangupInstrumentor
from hangup.otel.sampler import HangupSampler

if TYPE_CHECKING:
    from collections.abc import Iterator


class Owner(TracerProvider):
    """As Phoenix's: whoever adds a processor replaces the one it came with."""

    default: SpanProcessor | None = None

    def add_span_processor(self, span_processor: SpanProcessor) -> None:
        if self.default is not None:
            multi = self._active_span_processor
            multi._span_processors = ()
            self.default.shutdown()
        super().add_span_processor(span_processor)


class Heard(SpanProcessor):
    closed = False

    def __init__(self) -> None:
        self.ended: list[str] = []

    def on_end(self, span: Any) -> None:
        self.ended.append(span.name)

    def shutdown(self) -> None:
        self.closed = True


class Meters:
    """Meters of nobody until :meth:`set_up`."""

    def __init__(self) -> None:
        self.proxy = _ProxyMeterProvider()
        self._reader = InMemoryMetricReader()

    def set_up(self) -> None:
        provider = MeterProvider([self._reader], shutdown_on_exit=False)
        self.proxy.on_set_meter_provider(provider)

    def total(self, metric: str, **labels: str) -> float | None:
        """Sum a metric; None where it has no series of these labels."""
        data: Any = self._reader.get_metrics_data()
        points = [
            point.value
            for resource in ([] if data is None else data.resource_metrics)
            for scope in resource.scope_metrics
            for one in scope.metrics
            if one.name == metric
            for point in one.data.data_points
            if labels.items()
            <= {
                key.rpartition(".")[2]: v for key, v in point.attributes.items()
            }.items()
        ]
        return sum(points) if points else None


@pytest.fixture
def meters() -> Meters:
    return Meters()


@pytest.fixture(autouse=True)
def _nobody_has_set_up(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)
    yield
    hangup.uninstrument()


def spend(tracers: TracerProvider) -> None:
    with hangup.run(name="research"), chat(tracers.get_tracer("theirs")) as span:
        used(span, 10, 5)


def refused(tracers: TracerProvider) -> bool:
    with pytest.raises(RunAbandoned), hangup.run(name="research") as run:
        run.cancel("killed")
        with chat(tracers.get_tracer("theirs")):
            return False
    return True


def test_a_provider_that_is_set_up_later_is_measured_and_enforced(
    meters: Meters,
) -> None:
    hangup.instrument(meter_provider=meters.proxy)
    meters.set_up()
    tracers = TracerProvider(shutdown_on_exit=False)
    spend(tracers)
    assert meters.total(names.TOKENS, fate="delivered") == 15
    assert refused(tracers)


def test_two_providers_are_measured_and_left_as_they_were(meters: Meters) -> None:
    first = TracerProvider(shutdown_on_exit=False)
    trace._TRACER_PROVIDER = first
    tracer: Any = first.get_tracer("theirs")
    init = TracerProvider.__init__
    hangup.instrument(meter_provider=meters.proxy)
    meters.set_up()
    second = TracerProvider(shutdown_on_exit=False)
    for tracers in (first, second):
        spend(tracers)
    assert meters.total(names.TOKENS, fate="delivered") == 30
    hangup.uninstrument()
    assert TracerProvider.__init__ is init
    for tracers in (first, second):
        assert tracers._active_span_processor._span_processors == ()
        assert not isinstance(tracers.sampler, HangupSampler)
    assert not isinstance(tracer.sampler, HangupSampler)


def test_a_provider_given_is_the_only_one(meters: Meters) -> None:
    given = TracerProvider(shutdown_on_exit=False)
    hangup.instrument(tracer_provider=given, meter_provider=meters.proxy)
    meters.set_up()
    other = TracerProvider(shutdown_on_exit=False)
    spend(other)
    assert meters.total(names.TOKENS, fate="delivered") in (None, 0)
    spend(given)
    assert meters.total(names.TOKENS, fate="delivered") == 15


@pytest.mark.parametrize("first", [True, False])
def test_the_exporter_of_whoever_owns_the_provider_stays(
    first: bool,  # noqa: FBT001  a parameter of the test
    meters: Meters,
) -> None:
    if not first:
        hangup.instrument(meter_provider=meters.proxy)
    owner, heard = Owner(shutdown_on_exit=False), Heard()
    owner.add_span_processor(heard)
    owner.default = heard
    if first:
        trace._TRACER_PROVIDER = owner
        hangup.instrument(meter_provider=meters.proxy)
    meters.set_up()
    spend(owner)
    assert heard.ended == ["chat"]
    assert not heard.closed
    assert meters.total(names.TOKENS, fate="delivered") == 15


def test_providers_that_are_dropped_are_not_kept(meters: Meters) -> None:
    hangup.instrument(meter_provider=meters.proxy)
    instrumentor = HangupInstrumentor()
    for _ in range(3):
        TracerProvider(shutdown_on_exit=False).get_tracer("theirs")
    gc.collect()
    assert len(tuple(instrumentor._providers)) == 0
    assert len(instrumentor._guard._watched) == 0


def test_series_exist_at_zero_where_meters_are_set_up_later(meters: Meters) -> None:
    hangup.instrument(meter_provider=meters.proxy, tenants="acme")
    with hangup.run(name="research"):
        pass
    meters.set_up()
    for _ in range(2):  # what is added at a collection is in the next one at last
        found = [
            meters.total(names.RUNS, cause="killed", name="research"),
            meters.total(names.TENANT_COST, tenant="acme"),
            meters.total(names.BAGGAGE_LOST),
        ]
    assert found == [0, 0, 0]


def test_before_any_provider_calls_are_refused_all_the_same(
    meters: Meters,
) -> None:
    hangup.instrument(meter_provider=meters.proxy)
    with pytest.raises(RunAbandoned), hangup.run() as run:
        run.cancel("killed")
        with chat(trace.get_tracer("theirs")):
            pytest.fail("it was to be refused")


def test_with_the_sdk_disabled_calls_are_refused_all_the_same(
    meters: Meters, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    hangup.instrument(meter_provider=meters.proxy)
    assert refused(TracerProvider(shutdown_on_exit=False))


def test_a_wrong_setting_does_not_keep_zero_code_from_what_comes_after_us(
    meters: Meters, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """OpenTelemetry's loader ends at the first instrumentation that raises."""
    monkeypatch.setenv("HANGUP_MODE", "enfroce")
    instrumentor = HangupInstrumentor()
    instrumentor.instrument(skip_dep_check=True, meter_provider=meters.proxy)
    assert not instrumentor.is_instrumented_by_opentelemetry
    [record] = caplog.records
    assert record.levelname == "ERROR"
    assert "HANGUP_MODE='enfroce'" in record.getMessage()


def test_what_a_file_has_set_up_is_not_loaded_again_nor_complained_of(
    meters: Meters, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With OTEL_CONFIG_FILE, its settings come first and the loader after them."""
    instrumentor = HangupInstrumentor()
    options: dict[str, Any] = {"mode": False, "frameworks": ["quart"]}  # a plain off
    instrumentor.instrument(**options, meter_provider=meters.proxy)
    instrumentor.instrument(skip_dep_check=True)
    assert config.current().mode is Mode.OFF
    assert config.current().frameworks == ("quart",)
    assert caplog.records == []
