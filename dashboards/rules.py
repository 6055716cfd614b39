"""Recording rules: hourly increases, from which months are summed.

A month of raw counters is more samples than Prometheus reads in one query. These hours
are a few series each. They are evaluated often, and read at full hours only: a month
is the sum of its hours. A month needs ``--storage.tsdb.retention.time`` of 32 days or
more; the default is 15.

What is counted between two scrapes across a full hour is in neither hour. ``increase``
extrapolates in its place: right for hours on end, and not for a minute of traffic that
falls just there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from dashboards import promql, series

if TYPE_CHECKING:
    from dashboards.series import Metric

INTERVAL: Final = "2m"
"""A full hour must find a sample within the five minutes that Prometheus looks back."""

RECORDED: Final = (
    series.COST,
    series.METERED_COST,
    series.METERED_TOKENS,
    series.TENANT_COST,
    series.AVOIDED_COST,
    series.RUNS,
    series.UNKNOWN_BOUND,
)


@dataclass(frozen=True, slots=True)
class Record:
    """One recording rule."""

    name: str
    expr: str


def record(metric: Metric) -> Record:
    """Return the rule that records a counter's hourly increase, for each job."""
    expr = promql.increase(metric, by=("job", *metric.labels), window="1h", board=False)
    return Record(promql.record_name(metric), expr)


RECORDS: Final = tuple(record(metric) for metric in RECORDED)
