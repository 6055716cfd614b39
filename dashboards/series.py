"""Every metric that dashboards and alerts read, as Prometheus spells it.

``exposed`` is the one translation from OpenTelemetry's names: dots become underscores,
a unit in braces is dropped, ``s`` is spelt ``_seconds``, a counter ends in ``_total``.
That is what opentelemetry-exporter-prometheus, the Collector's exporters with their
defaults, and OTLP into Prometheus do. A Collector with ``add_metric_suffixes: false``
does not, and these dashboards find nothing there.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import Final

from hangup.otel import names


class Kind(Enum):
    """What Prometheus calls the type of a metric."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


def exposed(otel: str, kind: Kind | None = None, unit: str = "") -> str:
    """Return how Prometheus spells a metric, or with no kind a label."""
    name = re.sub(r"[^a-zA-Z0-9_]", "_", otel)
    if unit == "s":
        name += "_seconds"
    if kind is Kind.COUNTER:
        name = name.removesuffix("_total") + "_total"
    return name


def legend(*labels: str) -> str:
    """Return Grafana's legend format that shows these labels' values."""
    return " ".join("{{" + exposed(label) + "}}" for label in labels)


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric.

    Attributes:
        otel: Its name in ``hangup.otel.names``.
        kind: Its type.
        labels: Its labels, as in ``hangup.otel.names``.
        unit: ``s``, or "" where the unit is in braces or there is none.
    """

    otel: str
    kind: Kind
    labels: tuple[str, ...] = ()
    unit: str = ""

    @property
    def name(self) -> str:
        """As Prometheus spells it; of a histogram the part before ``_bucket``."""
        return exposed(self.otel, self.kind, self.unit)


_CALL = (names.FATE, names.CAUSE, names.MODEL, names.RUN_NAME, names.MODE)
_WORK = (names.FATE, names.CAUSE, names.CALL_KIND, names.RUN_NAME)
_AVOIDED = (names.CAUSE, names.MODEL, names.RUN_NAME)

COST: Final = Metric(names.COST, Kind.COUNTER, _CALL)
TOKENS: Final = Metric(names.TOKENS, Kind.COUNTER, (*_CALL, names.TOKEN_TYPE))
ESTIMATED: Final = Metric(
    names.ESTIMATED_TOKENS, Kind.COUNTER, (names.FATE, names.BASIS)
)
METERED_TOKENS: Final = Metric(
    names.METERED_TOKENS, Kind.COUNTER, (names.MODEL, names.IN_RUN, names.TOKEN_TYPE)
)
METERED_COST: Final = Metric(
    names.METERED_COST, Kind.COUNTER, (names.MODEL, names.IN_RUN)
)
CALLS: Final = Metric(names.CALLS, Kind.COUNTER, _WORK)
CALL_TIME: Final = Metric(names.CALL_TIME, Kind.COUNTER, _WORK, "s")
UNKNOWN: Final = Metric(names.UNKNOWN_CALLS, Kind.COUNTER, (names.MODEL,))
UNKNOWN_BOUND: Final = Metric(names.UNKNOWN_BOUND, Kind.COUNTER, (names.MODEL,))
OUTCOME_UNKNOWN: Final = Metric(names.OUTCOME_UNKNOWN, Kind.COUNTER, (names.MODEL,))
UNPRICED: Final = Metric(names.UNPRICED, Kind.COUNTER, (names.MODEL,))
TENANT_COST: Final = Metric(names.TENANT_COST, Kind.COUNTER, (names.TENANT, names.FATE))
AVOIDED_COST: Final = Metric(names.AVOIDED_COST, Kind.COUNTER, _AVOIDED)
AVOIDED_TOKENS: Final = Metric(names.AVOIDED_TOKENS, Kind.COUNTER, _AVOIDED)
RUNS: Final = Metric(
    names.RUNS,
    Kind.COUNTER,
    (names.OUTCOME, names.CAUSE, names.CALLER, names.MODE, names.RUN_NAME),
)
REFUSALS: Final = Metric(
    names.REFUSALS,
    Kind.COUNTER,
    (names.CALL_KIND, names.CAUSE, names.DECISION, names.RUN_NAME),
)
UNSETTLED: Final = Metric(names.UNSETTLED, Kind.COUNTER, (names.RUN_NAME,))
SWALLOWED: Final = Metric(names.SWALLOWED, Kind.COUNTER, (names.RUN_NAME,))
BAGGAGE_LOST: Final = Metric(names.BAGGAGE_LOST, Kind.COUNTER)
ACTIVE: Final = Metric(names.ACTIVE, Kind.GAUGE, (names.STATE,))
OLDEST: Final = Metric(names.OLDEST, Kind.GAUGE, (), "s")
STOP_DURATION: Final = Metric(
    names.STOP_DURATION, Kind.HISTOGRAM, (names.CAUSE, names.MODE), "s"
)
RUN_DURATION: Final = Metric(
    names.RUN_DURATION, Kind.HISTOGRAM, (names.OUTCOME, names.RUN_NAME), "s"
)
SLACK: Final = Metric(names.SLACK, Kind.HISTOGRAM, (names.RUN_NAME,), "s")
OVERRUN: Final = Metric(names.OVERRUN, Kind.HISTOGRAM, (names.RUN_NAME,), "s")
INFO: Final = Metric(names.INFO, Kind.GAUGE, (names.VERSION, names.MODE, names.POLICY))

BRAKE_TRIPPED: Final = Metric(names.BRAKE_TRIPPED, Kind.COUNTER)
BUS_UP: Final = Metric(names.BUS_UP, Kind.GAUGE)
POLICY_ERRORS: Final = Metric(names.POLICY_ERRORS, Kind.COUNTER)
WITH_A_BUS: Final = (BUS_UP,)
"""Metrics that are absent without a bus."""

ALL: Final = tuple(one for one in list(globals().values()) if isinstance(one, Metric))
"""Every metric above."""
