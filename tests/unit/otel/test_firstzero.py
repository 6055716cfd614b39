"""New series at zero once, and only to who takes the difference of two scrapes."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from support.processes import free_port

from hangup.core import guard
from hangup.otel import openmetrics
from hangup.otel.firstzero import SCRAPER, FirstZeros, shown
from hangup.otel.workers import WorkersMetricReader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from opentelemetry.sdk.metrics.export import MetricReader
    from prometheus_client.core import Metric

    from hangup.testing import FakeClock


@pytest.fixture
def path() -> Iterator[Path]:
    """A short one: the path of a Unix socket has no room for what pytest makes."""
    with tempfile.TemporaryDirectory() as path:
        yield Path(path)


@pytest.fixture(params=["alone", "shared"])
def zeros(request: pytest.FixtureRequest, path: Path, clock: FakeClock) -> FirstZeros:
    """In one process, and in a file."""
    where = path / "seen" if request.param == "shared" else None
    return FirstZeros(where, clock.monotonic)


def counter(name: str = "hangup_cost", **models: float) -> Metric:
    family = CounterMetricFamily(name, "", labels=["model"])
    for model, value in models.items():
        family.add_metric([model], value)
    return family


def values(zeros: FirstZeros, *metrics: Metric) -> list[float]:
    return [one.value for each in zeros.held(metrics) for one in each.samples]


def test_g1_first_increment_of_a_new_series_is_seen(zeros: FirstZeros) -> None:
    assert values(zeros, counter(a=5)) == [0]
    assert values(zeros, counter(a=5, b=7)) == [5, 0]
    assert values(zeros, counter(a=6, b=8)) == [6, 8]


def test_a_histogram_is_at_zero_in_every_bucket(zeros: FirstZeros) -> None:
    buckets = [("0.1", 1.0), ("+Inf", 2.0)]
    family = HistogramMetricFamily("hangup_stop", "", buckets=buckets, sum_value=3)
    assert values(zeros, family) == [0, 0, 0, 0]
    family = HistogramMetricFamily("hangup_stop", "", buckets=buckets, sum_value=3)
    assert values(zeros, family) == [1, 2, 2, 3]


def test_a_gauge_and_what_is_not_ours_are_as_they_are(zeros: FirstZeros) -> None:
    gauge = GaugeMetricFamily("hangup_run_active", "", 3)
    assert values(zeros, gauge, counter("http_requests", a=5)) == [3, 5]


def test_what_was_counted_before_anybody_scraped_is_no_growth(
    zeros: FirstZeros, clock: FakeClock
) -> None:
    clock.advance(301)
    assert values(zeros, counter(a=5)) == [5]
    clock.advance(15)
    assert values(zeros, counter(a=5, b=7)) == [5, 0]
    clock.advance(301)  # as when Prometheus was down
    assert values(zeros, counter(a=5, b=7, c=9)) == [5, 7, 9]


def test_what_one_process_showed_at_zero_no_other_does(
    path: Path, clock: FakeClock
) -> None:
    one, other = (FirstZeros(path / "seen", clock.monotonic) for _ in range(2))
    assert values(one, counter(a=5)) == [0]
    assert values(other, counter(a=5, b=7)) == [5, 0]
    assert values(one, counter(a=5, b=7)) == [5, 7]
    later = FirstZeros(path / "seen", clock.monotonic)
    assert values(later, counter(a=5, b=7, c=9)) == [5, 7, 0]


def test_sums_of_a_time_before_are_as_they_are(path: Path, clock: FakeClock) -> None:
    (path / "gone.json").write_text("{}")
    zeros = FirstZeros(path / "seen", clock.monotonic)
    assert values(zeros, counter(a=5)) == [5]
    assert values(zeros, counter(a=5, b=7)) == [5, 0]


@pytest.mark.parametrize("text", ["", "{", "5", "[]", '["x", "y"]', "[1, [2]]"])
def test_a_file_that_cannot_be_read_costs_a_zero_and_nothing_else(
    path: Path, clock: FakeClock, text: str
) -> None:
    zeros = FirstZeros(path / "seen", clock.monotonic)
    (path / "seen").write_text(text)
    assert values(zeros, counter(a=5)) == [5]
    assert values(zeros, counter(a=5, b=7)) == [5, 0]


def test_where_nothing_can_be_remembered_all_is_as_it_is(
    path: Path, clock: FakeClock
) -> None:
    zeros = FirstZeros(path / "gone" / "seen", clock.monotonic)
    for _ in range(2):
        assert values(zeros, counter(a=5)) == [5]


def test_series_without_number_are_not_remembered(
    zeros: FirstZeros, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hangup.otel.firstzero._MOST", 2)
    assert values(zeros, counter(a=5, b=7)) == [0, 0]
    assert values(zeros, counter(a=5, b=7, c=9)) == [5, 7, 9]


def scrape(port: int, *, prometheus: bool) -> str:
    headers = {SCRAPER: "10"} if prometheus else {}
    text = httpx.get(f"http://localhost:{port}/metrics", headers=headers).text
    [line] = [line for line in text.splitlines() if line.startswith("hangup_x_total")]
    return line.rpartition(" ")[2]


@contextlib.contextmanager
def of_workers(path: Path, port: int) -> Iterator[MetricReader]:
    yield WorkersMetricReader(path, port=port)


@contextlib.contextmanager
def of_one(_path: Path, port: int) -> Iterator[MetricReader]:
    registry = CollectorRegistry()
    server, thread = openmetrics.serve(port, registry=registry)
    try:
        yield openmetrics.ExemplarMetricReader(registry=registry)
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


@pytest.mark.parametrize("serving", [of_workers, of_one])
def test_prometheus_is_shown_the_zero_and_a_person_the_value(
    path: Path,
    serving: Callable[[Path, int], AbstractContextManager[MetricReader]],
) -> None:
    port = free_port()
    with serving(path, port) as reader:
        meters = MeterProvider([reader], shutdown_on_exit=False)
        meters.get_meter("test").create_counter("hangup.x").add(2)
        asked = [scrape(port, prometheus=who) for who in (False, True, False, True)]
        meters.shutdown()
    assert asked == ["2.0", "0.0", "2.0", "2.0"]


def test_who_asks_for_a_metric_by_its_name_is_given_it() -> None:
    port = free_port()
    registry = CollectorRegistry()
    Counter("requests", "", registry=registry).inc()
    server, thread = openmetrics.serve(port, registry=registry)
    try:
        url = f"http://localhost:{port}/metrics?name[]=requests_total"
        text = httpx.get(url, headers={SCRAPER: "10"}).text
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
    assert "requests_total 1.0" in text


def test_a_fault_of_ours_shows_everything_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def breaks(*_arguments: object) -> None:
        raise ZeroDivisionError

    guard.strict(False)  # noqa: FBT003  as in production
    zeros = FirstZeros()
    monkeypatch.setattr(zeros, "held", breaks)
    [family] = shown(zeros, [counter(a=5)])
    assert [one.value for one in family.samples] == [5]
