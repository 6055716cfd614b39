"""What is exported over OTLP, decoded: sums in both temporalities, and exemplars."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import (
    OTLPMetricExporter as OverGrpc,
)
from opentelemetry.exporter.otlp.proto.http.metric_exporter import (
    OTLPMetricExporter as OverHttp,
)
from opentelemetry.sdk.metrics import (
    Counter,
    Histogram,
    MeterProvider,
    ObservableCounter,
)
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    MetricExporter,
    PeriodicExportingMetricReader,
)
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON
from support.otlp import Receiver
from support.telemetry import chat, used

import hangup
from hangup.otel import names
from hangup.otel.instrumentor import HangupInstrumentor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opentelemetry.sdk.trace.sampling import Sampler

HOUR = 3_600_000


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as receiver:
        yield receiver


def exporter(receiver: Receiver, protocol: str, temporality: str) -> MetricExporter:
    wanted = AggregationTemporality[temporality]
    preferred: Any = dict.fromkeys((Counter, Histogram, ObservableCounter), wanted)
    if protocol == "grpc":
        return OverGrpc(receiver.grpc, insecure=True, preferred_temporality=preferred)
    return OverHttp(receiver.http, preferred_temporality=preferred)


def spend(tracer: Any, tokens: tuple[int, int]) -> str:
    """One call; returns its trace id."""
    with chat(tracer, "gpt-4o") as span:
        used(span, *tokens)
    return f"{span.get_span_context().trace_id:032x}"


def abandoned_twice(tracer: Any, *, mode: str = "observe") -> list[str]:
    """Two runs whose caller leaves, with a call before and one after; their traces."""
    traces = []
    for _ in range(2):
        with hangup.run(name="job", mode=mode) as run:
            spend(tracer, (10, 5))
            run.cancel("disconnect")
            traces.append(spend(tracer, (100, 50)))
    return traces


@pytest.mark.parametrize("temporality", ["CUMULATIVE", "DELTA"])
@pytest.mark.parametrize("protocol", ["grpc", "http"])
@pytest.mark.parametrize("sampler", [ALWAYS_ON, ALWAYS_OFF], ids=["on", "off"])
def test_sums_and_exemplars_arrive_as_they_were_counted(
    receiver: Receiver, protocol: str, temporality: str, sampler: Sampler
) -> None:
    """Over three exports: one with nothing, one with spend, one with more of it."""
    sender = exporter(receiver, protocol, temporality)
    meters = MeterProvider(
        [PeriodicExportingMetricReader(sender, HOUR)], shutdown_on_exit=False
    )
    tracers = TracerProvider(sampler=sampler, shutdown_on_exit=False)
    tracer = tracers.get_tracer("test")
    instrumentor = HangupInstrumentor()
    instrumentor.instrument(tracer_provider=tracers, meter_provider=meters)
    try:
        instrumentor.flush()
        assert receiver.total(names.TOKENS) == 0
        traces = abandoned_twice(tracer)
        with hangup.run(name="job", mode="observe"):
            spend(tracer, (7, 3))
        instrumentor.flush()
        traces += abandoned_twice(tracer)
        instrumentor.flush()
    finally:
        instrumentor.uninstrument()
        tracers.shutdown()
        meters.shutdown()

    def tokens(fate: str) -> tuple[float, float]:
        return (
            receiver.total(names.TOKENS, fate=fate, type="input"),
            receiver.total(names.TOKENS, fate=fate, type="output"),
        )

    assert tokens("sunk") == (40, 20)
    assert tokens("wasted") == (400, 200)
    assert tokens("delivered") == (7, 3)
    assert receiver.total(names.RUNS, outcome="abandoned", cause="disconnect") == 4
    assert receiver.total(names.RUNS, outcome="delivered") == 1
    assert receiver.total(names.METERED_TOKENS) == 670
    assert receiver.total(names.RUN_DURATION) == 5
    points = receiver.points(names.TOKENS)
    assert {one.delta for one in points} == {temporality == "DELTA"}
    assert len(receiver.instances(names.TOKENS)) == 1
    wasted = receiver.points(names.TOKENS, fate="wasted", cause="disconnect")
    shown = {trace for one in wasted for trace in one.traces}
    if sampler is ALWAYS_ON:
        # The SDK keeps some of each export, which ones is chance: all are of our calls.
        assert shown <= set(traces)
        assert shown & set(traces[:2])
        assert shown & set(traces[2:])
    else:
        assert not shown
    for one in receiver.points(names.TOKENS):
        if one.labels["fate"] != "wasted":
            assert not one.traces
