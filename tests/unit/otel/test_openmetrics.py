"""The stock Prometheus reader's families, with the exemplars that it drops."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from opentelemetry import trace
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest as plain
from prometheus_client.openmetrics.exposition import generate_latest as openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from hangup.otel.openmetrics import ExemplarMetricReader

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opentelemetry.context import Context
    from prometheus_client.samples import Exemplar


def span_of(trace_id: int, *, sampled: bool = True) -> Context:
    flags = TraceFlags(TraceFlags.SAMPLED if sampled else TraceFlags.DEFAULT)
    context = SpanContext(trace_id, 7, is_remote=False, trace_flags=flags)
    return trace.set_span_in_context(NonRecordingSpan(context))


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def provider(registry: CollectorRegistry) -> Iterator[MeterProvider]:
    provider = MeterProvider([ExemplarMetricReader(registry=registry)])
    yield provider
    provider.shutdown()


def exemplars(registry: CollectorRegistry) -> dict[tuple[str, str], Exemplar]:
    """What a scrape shows, by the sample's name and its label ``a`` or ``le``."""
    families = text_string_to_metric_families(  # type: ignore[no-untyped-call]
        openmetrics(registry).decode()  # type: ignore[no-untyped-call]
    )
    return {
        (sample.name, sample.labels.get("le") or sample.labels.get("a_b", "")): (
            sample.exemplar
        )
        for family in families
        for sample in family.samples
        if sample.exemplar is not None
    }


def test_a_counters_exemplar_names_the_trace_of_its_series_alone(
    registry: CollectorRegistry, provider: MeterProvider
) -> None:
    counter = provider.get_meter("m").create_counter("spent.total", unit="{token}")
    counter.add(3, {"a.b": "x", "on": True}, context=span_of(0xABC))
    counter.add(4, {"a.b": "y", "on": True})
    counter.add(5, {"a.b": "z", "on": True}, context=span_of(0xDEF, sampled=False))
    [(key, exemplar)] = exemplars(registry).items()
    assert key == ("spent_total", "x")
    assert exemplar.labels == {"trace_id": f"{0xABC:032x}", "span_id": f"{7:016x}"}
    assert exemplar.value == 3
    assert exemplar.timestamp is not None


def test_it_stays_for_the_next_who_scrapes_until_there_is_a_newer_one(
    registry: CollectorRegistry, provider: MeterProvider
) -> None:
    counter = provider.get_meter("m").create_counter("spent")
    counter.add(1, {"a.b": "x"}, context=span_of(1))
    first = exemplars(registry)
    assert exemplars(registry) == first != {}
    counter.add(1, {"a.b": "x"}, context=span_of(2))
    [exemplar] = exemplars(registry).values()
    assert exemplar.labels["trace_id"] == f"{2:032x}"


def test_a_histograms_stand_at_the_bucket_of_their_value(
    registry: CollectorRegistry, provider: MeterProvider
) -> None:
    histogram = provider.get_meter("m").create_histogram(
        "took", unit="s", explicit_bucket_boundaries_advisory=[0.5, 1.0]
    )
    for trace_id, value in ((1, 0.5), (2, 0.7), (3, 9.0)):
        histogram.record(value, context=span_of(trace_id))
    found = {
        le: int(one.labels["trace_id"], 16)
        for (_, le), one in exemplars(registry).items()
    }
    assert found == {"0.5": 1, "1.0": 2, "+Inf": 3}


def test_but_for_them_it_says_what_the_stock_reader_says(
    registry: CollectorRegistry,
) -> None:
    stock = CollectorRegistry()
    readers = [
        ExemplarMetricReader(registry=registry),
        PrometheusMetricReader(registry=stock),
    ]
    provider = MeterProvider(readers)
    meter = provider.get_meter("m", "1")
    counter = meter.create_counter("a.total", unit="{token}", description="Tokens")
    counter.add(2, {"a.b": "x"}, context=span_of(1))
    meter.create_up_down_counter("c").add(-1)
    meter.create_histogram("d", unit="s").record(0.3)
    assert plain(registry) == plain(stock) != b""
    provider.shutdown()
    assert plain(registry) == b""
