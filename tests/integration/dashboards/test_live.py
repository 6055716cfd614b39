"""A real Prometheus scrapes hangup's real instruments; every panel is asked of it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
from dashboards import files, queries, series
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from prometheus_client import start_http_server
from support.panels import PANELS, WITH_A_BUS, filled, red
from support.prometheus import JOB, Prometheus

from hangup.config import Mode
from hangup.otel import names
from hangup.otel.instruments import Instruments
from hangup.spend.fate import Basis, Fate
from hangup.spend.posting import Posting
from hangup.spend.usage import Usage

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MODEL = "gpt-5"
NAME = "/ask"
USD = 0.25


@pytest.fixture
def service() -> Iterator[tuple[Instruments, int]]:
    """The instruments, and the port on which they are scraped."""
    provider = MeterProvider([PrometheusMetricReader()])
    meter = provider.get_meter(names.SCOPE)
    instruments = Instruments(meter, "1", "enforce", lambda: None)
    server, thread = start_http_server(0, "127.0.0.1")
    try:
        yield instruments, server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
        provider.shutdown()


def posting(fate: Fate, *, kind: str = "inference", priced: bool = True) -> Posting:
    cause = "disconnect" if fate in (Fate.SUNK, Fate.WASTED) else "none"
    tool = kind == "tool"
    return Posting(
        *(fate, kind, "" if tool else MODEL, 0 if tool else 30, 0 if tool else 40),
        *(1, 1.5, Basis.PRORATED),
        span_context=None,
        cause=cause,
        usd=USD if priced and not tool else None,  # type: ignore[arg-type]
    )


def starts(made: Instruments) -> None:
    """A process that has just begun its first runs: everything stands at zero."""
    made.seed_shared(["acme"])
    for mode in (Mode.OBSERVE, Mode.ENFORCE):
        made.seed_run(NAME, mode)
        made.seed_call("inference", MODEL, NAME, mode)


def works(made: Instruments) -> None:
    """A few runs of either mode: most are delivered, one in ten is abandoned."""
    run = {names.RUN_NAME: NAME}
    for mode in (Mode.OBSERVE, Mode.ENFORCE):
        made.add_run(9, "delivered", "none", "connected", NAME, mode)
        made.add_run(1, "abandoned", "disconnect", "gone", NAME, mode)
        for fate in (Fate.SUNK, Fate.WASTED):
            made.post(posting(fate), NAME, mode, "acme")
        for _ in range(48):
            made.post(posting(Fate.DELIVERED), NAME, mode, "acme")
        made.post(posting(Fate.WASTED, kind="tool"), NAME, mode, "acme")
        stop = {names.CAUSE: "disconnect", names.MODE: mode.value}
        made.stop_duration.record(0.02, stop)
    made.metered.add(MODEL, Usage(input=3_000, output=4_000), 25, in_run=True)  # type: ignore[arg-type]
    made.unknown.add(1, {names.MODEL: MODEL})
    made.unknown_bound.add(100, {names.MODEL: MODEL})
    labels = {names.MODEL: MODEL, names.CAUSE: "disconnect", **run}
    made.avoided._cost.add(0.5, labels)
    for decision in ("refuse", "would_refuse"):
        made.add_refusal(1, "inference", "disconnect", decision, NAME)
    for outcome in ("delivered", "abandoned"):
        made.run_duration.record(2.0, {names.OUTCOME: outcome, **run})
    made.slack.record(5.0, run)
    made.overrun.record(5.0, run)


def asked(prometheus: Prometheus, panel: dict[str, Any]) -> list[float]:
    """Every value that a panel shows; fails where one of its targets shows NaN."""
    values = []
    for target in panel["targets"]:
        for sample in prometheus.ask(filled(target["expr"])):
            value = float(sample["value"][1])
            assert not math.isnan(value), (panel["title"], target["expr"])
            values.append(value)
    return values


def wait_scrapes(prometheus: Prometheus, count: int) -> None:
    """Wait for so many more scrapes of the service."""
    scrapes = f'count_over_time(up{{job="{JOB}"}}[1h])'
    so_far = prometheus.number(scrapes)
    prometheus.until(lambda: prometheus.number(scrapes) >= so_far + count)


@pytest.mark.timeout(180)
def test_every_panel_shows_what_there_is_and_nothing_is_red_in_a_quiet_hour(
    service: tuple[Instruments, int], tmp_path: Path
) -> None:
    made, port = service
    with Prometheus(tmp_path, port, files.prometheus_rules()) as prometheus:
        # Before the first run of all: no panel fails, none is red, nothing fires.
        wait_scrapes(prometheus, 3)
        assert_calm(prometheus)
        starts(made)
        prometheus.until(lambda: prometheus.number(f"count({series.RUNS.name})") > 0)
        wait_scrapes(prometheus, 2)
        assert_calm(prometheus)

        # A histogram has no series before it has a value: its first is never seen.
        works(made)
        wait_scrapes(prometheus, 3)
        works(made)
        wait_scrapes(prometheus, 3)
        for title, panel in PANELS:
            values = asked(prometheus, panel)
            assert values or panel["title"] in WITH_A_BUS, f"{title} is empty"
            for target in panel["targets"]:
                found = prometheus.ask(filled(target["expr"]))
                assert found or panel["title"] in WITH_A_BUS, target["expr"]
        assert_calm(prometheus)

        # One portion in either mode, twice. An increase is extrapolated by up to one
        # scrape, which of these few seconds is a tenth, and of an hour nothing.
        wasted = prometheus.number(f"sum({series.COST.name}{{{queries.WASTED}}})")
        assert wasted == pytest.approx(4 * USD)
        shown = prometheus.number(filled(queries.MONTH_WASTED))
        assert shown == pytest.approx(4 * USD, rel=0.2)


def assert_calm(prometheus: Prometheus) -> None:
    """No rule fails, no alert fires or is about to, no panel is red or shows NaN."""
    prometheus.until(
        lambda: all(rule["health"] != "unknown" for rule in prometheus.rules())
    )
    for rule in prometheus.rules():
        assert rule["health"] == "ok", (rule["name"], rule.get("lastError"))
        assert not rule.get("alerts"), (rule["name"], rule["alerts"])
    for title, panel in PANELS:
        for value in asked(prometheus, panel):
            assert not red(panel, value), f"{title} is red at {value}"
