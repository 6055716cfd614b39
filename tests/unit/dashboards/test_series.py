"""Names are spelt as the real exporter spells them, and labels are those there are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from dashboards import promql, rules, series
from dashboards.promql import is_
from dashboards.series import Kind, exposed
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from prometheus_client import REGISTRY

from hangup.config import Mode, Settings
from hangup.otel import names
from hangup.otel.instruments import Instruments
from hangup.otel.rollout import Rollout
from hangup.spend.fate import Basis, Fate
from hangup.spend.posting import Posting

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.metrics_core import Metric as Family

WITH_A_BUS = {metric.name for metric in series.WITH_A_BUS}


@pytest.fixture
def families() -> Iterator[dict[str, Family]]:
    """What a process that has had one run shows at /metrics, by the exposed name."""
    reader = PrometheusMetricReader()
    provider = MeterProvider([reader])
    try:
        made = Instruments(
            provider.get_meter(names.SCOPE), "1", "observe", lambda: None
        )
        rollout = Rollout(Settings())
        rollout.install(made.meter)
        rollout.tell(made.info)
        made.seed_shared(["acme"])
        name = made.seed_run("/ask", Mode.OBSERVE)
        made.seed_call("inference", "gpt-5", "/ask", Mode.OBSERVE)
        posting = Posting(
            *(Fate.WASTED, "inference", "gpt-5", 3, 4, 1, 1.0, Basis.REPORTED),
            span_context=None,
            cause="disconnect",
            usd=None,
        )
        made.post(posting, name, Mode.OBSERVE, "other")
        run = {names.RUN_NAME: name}
        stop = {names.CAUSE: "disconnect", names.MODE: "observe"}
        made.stop_duration.record(0.5, stop)
        made.run_duration.record(0.5, {names.OUTCOME: "abandoned", **run})
        made.slack.record(0.5, run)
        made.overrun.record(0.5, run)
        families = {}
        for family in REGISTRY.collect():
            total = "_total" if family.type == "counter" else ""
            families[family.name + total] = family
        yield families
    finally:
        rollout.uninstall()
        provider.shutdown()


def test_g5_names_differ_by_exporter(families: dict[str, Family]) -> None:
    """Every metric is spelt as the exporter spells it, of its type, with its labels."""
    for metric in series.ALL:
        if metric.name in WITH_A_BUS:
            assert metric.name not in families, f"{metric.otel} has come"
            continue
        family = families[metric.name]
        assert family.type == metric.kind.value, metric.otel
        labels = {label for sample in family.samples for label in sample.labels}
        labels = {one for one in labels if not one.startswith("otel_scope_")} - {"le"}
        # The durations' labels are the recorder's; see below.
        assert labels == {exposed(label) for label in metric.labels}, metric.otel


def test_a_truth_value_is_spelt_as_the_queries_spell_it(
    families: dict[str, Family],
) -> None:
    samples = families[series.METERED_TOKENS.name].samples
    spelt = {sample.labels[exposed(names.IN_RUN)] for sample in samples}
    assert spelt == {"true", "false"}


def test_every_metric_of_hangup_is_known_here(families: dict[str, Family]) -> None:
    known = {metric.name for metric in series.ALL} - WITH_A_BUS
    assert {name for name in families if name.startswith("hangup_")} == known


def test_units_and_endings_are_never_doubled() -> None:
    assert exposed("a.total", Kind.COUNTER) == "a_total"
    assert exposed("a.b", Kind.COUNTER, "s") == "a_b_seconds_total"
    assert exposed("a.b", Kind.GAUGE, "{run}") == "a_b"


def test_a_label_that_a_metric_lacks_is_an_error_and_no_empty_panel() -> None:
    with pytest.raises(ValueError, match=r"has no label hangup\.tenant"):
        promql.select(series.COST, is_(names.TENANT, "acme"))
    with pytest.raises(ValueError, match=r"has no label hangup\.fate"):
        promql.increase(series.RUNS, by=(names.FATE,))
    with pytest.raises(ValueError, match=r"has no label hangup\.mode"):
        promql.hours(series.TENANT_COST, is_(names.MODE, "enforce"))
    with pytest.raises(ValueError, match="is a histogram"):
        promql.select(series.SLACK)


def test_recorded_hours_keep_every_label_but_the_process() -> None:
    [cost] = [one for one in rules.RECORDS if one.name == "hangup:cost_usd:increase1h"]
    labels = ", ".join(exposed(label) for label in ("job", *series.COST.labels))
    expected = f"sum by ({labels}) (increase(hangup_cost_usd_total[1h]))"
    assert cost.expr == expected
