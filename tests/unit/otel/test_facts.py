"""What hangup relies on in the OpenTelemetry SDK, pinned row by row.

A red test here is news from an upgrade, not a bug of ours: look up who relies on it.
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry import context as context_api
from opentelemetry import trace
from opentelemetry.metrics import Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import (
    ConcurrentMultiSpanProcessor,
    ReadableSpan,
    Span,
    SpanProcessor,
    Tracer,
    TracerProvider,
)
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import (
    ALWAYS_OFF,
    ALWAYS_ON,
    Decision,
    Sampler,
    SamplingResult,
)
from opentelemetry.trace import NonRecordingSpan, SpanContext, StatusCode
from support.telemetry import CountingProcessor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from opentelemetry.context import Context

KEY = context_api.create_key("fact")


class Refusing(SpanProcessor):
    """Raises in on_start, as a naive guard would."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        raise self.error


class Looking(SpanProcessor):
    """Notes what a processor can see."""

    def __init__(self) -> None:
        self.contexts: list[Context | None] = []
        self.values: list[object] = []
        self.current: list[trace.Span] = []

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        self.contexts.append(parent_context)
        self.values.append(context_api.get_value(KEY))

    def on_end(self, span: ReadableSpan) -> None:
        self.current.append(trace.get_current_span())


class RecordOnly(Sampler):
    def should_sample(self, *args: Any, **kwargs: Any) -> SamplingResult:
        return SamplingResult(Decision.RECORD_ONLY)

    def get_description(self) -> str:
        return "RecordOnly"


@pytest.fixture
def provider() -> Iterator[TracerProvider]:
    provider = TracerProvider(shutdown_on_exit=False)
    yield provider
    provider.shutdown()


@pytest.fixture
def value() -> Iterator[str]:
    token = context_api.attach(context_api.set_value(KEY, "here"))
    yield "here"
    context_api.detach(token)


class _Signal(BaseException):
    pass


@pytest.mark.parametrize("kind", [ValueError, _Signal])
def test_what_raises_in_on_start_escapes_and_the_body_does_not_run(
    provider: TracerProvider, kind: type[BaseException]
) -> None:
    before, after = CountingProcessor(), CountingProcessor()
    for processor in (before, Refusing(kind()), after):
        provider.add_span_processor(processor)
    ran = False
    with (
        pytest.raises(kind),
        provider.get_tracer("x").start_as_current_span("call"),
    ):
        ran = True
    assert not ran
    assert not trace.get_current_span().get_span_context().is_valid
    # Why hangup does not do it: one processor has seen half of a span, one nothing.
    assert (before.started, before.ended) == (["call"], [])
    assert (after.started, after.ended) == ([], [])


def test_pool_threads_of_a_concurrent_multi_processor_see_an_empty_context(
    value: str,
) -> None:
    multi = ConcurrentMultiSpanProcessor()
    provider = TracerProvider(active_span_processor=multi, shutdown_on_exit=False)
    looking = Looking()
    provider.add_span_processor(looking)
    provider.get_tracer("x").start_span("call").end()
    assert looking.values == [None]
    provider.shutdown()


def test_a_processor_gets_no_parent_context_unless_the_caller_passed_one(
    provider: TracerProvider, value: str
) -> None:
    looking = Looking()
    provider.add_span_processor(looking)
    given = context_api.get_current()
    tracer = provider.get_tracer("x")
    tracer.start_span("call").end()
    tracer.start_span("call", context=given).end()
    assert looking.contexts == [None, given]
    assert looking.values == [value, value]


def test_a_dropped_span_is_told_to_no_processor_and_knows_no_parent() -> None:
    provider = TracerProvider(sampler=ALWAYS_OFF, shutdown_on_exit=False)
    counting = CountingProcessor()
    provider.add_span_processor(counting)
    with provider.get_tracer("x").start_as_current_span("call") as span:
        assert isinstance(span, NonRecordingSpan)
        assert not hasattr(span, "parent")
        assert span.get_span_context().is_valid
    assert (counting.started, counting.ended) == ([], [])
    provider.shutdown()


@pytest.mark.parametrize("kind", [SimpleSpanProcessor, BatchSpanProcessor])
def test_record_only_tells_the_processors_and_exports_nothing(kind: Any) -> None:
    provider = TracerProvider(sampler=RecordOnly(), shutdown_on_exit=False)
    exporter, counting = InMemorySpanExporter(), CountingProcessor()
    provider.add_span_processor(kind(exporter))
    provider.add_span_processor(counting)
    with provider.get_tracer("x").start_as_current_span("call") as span:
        assert span.is_recording()
        assert not span.get_span_context().trace_flags.sampled
    provider.force_flush()
    assert counting.started == counting.ended == ["call"]
    assert exporter.get_finished_spans() == ()
    provider.shutdown()


def test_a_new_sampler_reaches_only_new_tracers_unless_set_on_each(
    provider: TracerProvider,
) -> None:
    old = provider.get_tracer("old")
    provider.sampler = ALWAYS_OFF
    assert old.start_span("call").is_recording()
    assert not provider.get_tracer("new").start_span("call").is_recording()
    for tracer in provider._tracers.values():
        tracer.sampler = ALWAYS_OFF
    assert not old.start_span("call").is_recording()
    assert provider.get_tracer("old") is old


def test_a_tracer_knows_its_provider_by_the_multi_processor(
    provider: TracerProvider,
) -> None:
    tracer = provider.get_tracer("x")
    assert isinstance(tracer, Tracer)
    assert tracer.span_processor is provider._active_span_processor
    assert tracer.sampler is provider.sampler
    assert provider.sampler is not ALWAYS_ON  # the default is parent based


def test_attributes_are_frozen_before_the_end_hooks_run(
    provider: TracerProvider, caplog: pytest.LogCaptureFixture
) -> None:
    class Late(SpanProcessor):
        def _on_ending(self, span: Span) -> None:
            span.set_attribute("ending", "late")

        def on_end(self, span: Any) -> None:
            assert not hasattr(span, "set_attribute")

    exporter = InMemorySpanExporter()
    provider.add_span_processor(Late())
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with caplog.at_level(logging.WARNING):
        provider.get_tracer("x").start_span("call").end()
    [span] = exporter.get_finished_spans()
    assert dict(span.attributes or {}) == {}
    assert "ended span" in caplog.text


def test_a_with_span_is_no_longer_current_in_on_end(provider: TracerProvider) -> None:
    looking = Looking()
    provider.add_span_processor(looking)
    with provider.get_tracer("x").start_as_current_span("call"):
        pass
    assert not looking.current[0].get_span_context().is_valid


@pytest.mark.parametrize(
    ("kind", "status", "events"),
    [
        (ValueError, StatusCode.ERROR, 1),
        (_Signal, StatusCode.UNSET, 0),
        (asyncio.CancelledError, StatusCode.UNSET, 0),
    ],
)
def test_use_span_calls_only_an_exception_an_error(
    provider: TracerProvider,
    kind: type[BaseException],
    status: StatusCode,
    events: int,
) -> None:
    tracer = provider.get_tracer("x")
    span: Any = tracer.start_span("call")
    with pytest.raises(kind), trace.use_span(span, end_on_exit=True):
        raise kind
    assert span.status.status_code is status
    assert len(span.events) == events
    assert span.end_time is not None


def test_a_disabled_sdk_gives_tracers_that_are_not_the_sdks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    provider = TracerProvider(shutdown_on_exit=False)
    tracer = provider.get_tracer("x")
    assert not isinstance(tracer, Tracer)
    assert not tracer.start_span("call").is_recording()


def test_the_context_follows_tasks_and_to_thread_but_no_executor(value: str) -> None:
    def look() -> object:
        return context_api.get_value(KEY)

    async def look_around() -> tuple[object, ...]:
        async def task() -> object:
            return look()

        with ThreadPoolExecutor(1) as pool:
            executor = asyncio.get_running_loop().run_in_executor(pool, look)
            return (
                await asyncio.create_task(task()),
                await asyncio.to_thread(look),
                await executor,
            )

    assert asyncio.run(look_around()) == (value, value, None)


# Metrics


def _collected(reader: InMemoryMetricReader) -> dict[str, list[Any]]:
    data = reader.get_metrics_data()
    return {
        metric.name: [
            getattr(point, "value", None) for point in metric.data.data_points
        ]
        for resource in (() if data is None else data.resource_metrics)
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }


@pytest.fixture
def reader() -> InMemoryMetricReader:
    return InMemoryMetricReader()


@pytest.fixture
def meters(reader: InMemoryMetricReader) -> Iterator[MeterProvider]:
    meters = MeterProvider([reader], shutdown_on_exit=False)
    yield meters
    meters.shutdown()


def test_adding_zero_makes_a_series_and_nothing_else_does(
    meters: MeterProvider, reader: InMemoryMetricReader
) -> None:
    meter = meters.get_meter("x")
    meter.create_counter("never")
    meter.create_counter("seeded").add(0, {"a": "b"})
    assert _collected(reader) == {"seeded": [0]}


def test_what_an_observable_callback_adds_is_in_the_same_collection(
    meters: MeterProvider, reader: InMemoryMetricReader
) -> None:
    meter = meters.get_meter("x")
    counter = meter.create_counter("counter")

    def observe(_options: Any) -> list[Observation]:
        counter.add(1)
        return [Observation(1)]

    meter.create_observable_gauge("gauge", callbacks=[observe])
    assert _collected(reader) == {"gauge": [1], "counter": [1]}
    assert _collected(reader) == {"gauge": [1], "counter": [2]}


def test_an_instrument_asked_for_twice_is_the_first_one_with_its_first_callbacks(
    meters: MeterProvider, reader: InMemoryMetricReader
) -> None:
    assert meters.get_meter("x") is meters.get_meter("x")
    meter = meters.get_meter("x")

    def observing(value: int) -> Callable[[Any], list[Observation]]:
        return lambda _options: [Observation(value)]

    for value in (1, 2):
        meter.create_observable_gauge("gauge", callbacks=[observing(value)])
    assert _collected(reader) == {"gauge": [1]}


def test_the_span_id_is_the_second_field_of_a_span_context() -> None:
    context = SpanContext(7, 8, is_remote=False)
    assert context[1] == context.span_id == 8
