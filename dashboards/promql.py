"""The few shapes of query, over typed selectors.

A matcher or grouping label that the metric does not have is an error here, and not an
empty panel there.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final, NamedTuple

from dashboards.series import Kind, exposed
from hangup.otel import names

if TYPE_CHECKING:
    from dashboards.series import Metric

RANGE: Final = "$__range"
"""What the user looks at: totals."""
RATE: Final = "$__rate_interval"
"""One step, at least four scrapes: curves."""

CHOSEN: Final = {
    names.RUN_NAME: "run_name",
    names.MODEL: "model",
}
"""Labels that a dashboard narrows by a variable wherever a metric has them."""
_MOST_BARS: Final = 8

CAUSE_CHOSEN: Final = "cause"
"""Variable that only panels about causes heed: it would empty every denominator."""


class Matcher(NamedTuple):
    """One condition of a selector."""

    label: str
    operator: str
    value: str

    def __str__(self) -> str:
        """As PromQL."""
        return f"{exposed(self.label)}{self.operator}{json.dumps(self.value)}"


def is_(label: str, *values: str) -> Matcher:
    """Match any of the values."""
    return Matcher(label, "=" if len(values) == 1 else "=~", "|".join(values))


def chosen(label: str, variable: str) -> Matcher:
    """Match what the user has chosen."""
    return Matcher(label, "=~", f"${variable}")


def select(
    metric: Metric,
    *matchers: Matcher,
    board: bool = True,
    part: str = "",
    upto: float | None = None,
) -> str:
    """Return a selector.

    Args:
        metric: Of what.
        matchers: Conditions on its own labels.
        board: Whether to add the variables of a dashboard; alerts have none.
        part: ``_bucket``, ``_count`` or ``_sum`` of a histogram.
        upto: The one bucket up to this bound; exporters spell 1 as ``1`` or ``1.0``.
    """
    _refuse_unknown(metric, [matcher.label for matcher in matchers])
    if (metric.kind is Kind.HISTOGRAM) != bool(part):
        raise ValueError(
            f"{metric.otel} is a {metric.kind.value}, and part is {part!r}"
        )
    every = [str(matcher) for matcher in matchers]
    if upto is not None:
        every.append(f'le=~"{upto:g}|{float(upto)}"')
    if board:
        every = [*_chosen(metric, matchers, instance=True), *every]
    return metric.name + part + (f"{{{', '.join(every)}}}" if every else "")


def rate(
    metric: Metric,
    *matchers: Matcher,
    by: tuple[str, ...] = (),
    window: str = RATE,
    board: bool = True,
) -> str:
    """Return how fast a counter grows a second, summed over processes."""
    counted = f"rate({select(metric, *matchers, board=board)}[{window}])"
    return summed(metric, counted, by)


def increase(  # noqa: PLR0913
    metric: Metric,
    *matchers: Matcher,
    by: tuple[str, ...] = (),
    window: str = RANGE,
    board: bool = True,
    part: str = "",
    upto: float | None = None,
) -> str:
    """Return by how much a counter grew in a window, summed over processes.

    The sum is outside: a sum of counters would take a worker's restart for a reset of
    them all.
    """
    selected = select(metric, *matchers, board=board, part=part, upto=upto)
    return summed(metric, f"increase({selected}[{window}])", by)


def record_name(metric: Metric) -> str:
    """Return what the hourly increase of a counter is recorded as."""
    stem = metric.name.removeprefix("hangup_").removesuffix("_total")
    return f"hangup:{stem}:increase1h"


def hours(metric: Metric, *matchers: Matcher, by: tuple[str, ...] = ()) -> str:
    """Return the sum of a counter's recorded hours within what the user looks at."""
    _refuse_unknown(metric, [matcher.label for matcher in matchers])
    every = [*_chosen(metric, matchers, instance=False), *map(str, matchers)]
    recorded = f"{record_name(metric)}{{{', '.join(every)}}}"
    return summed(metric, f"sum_over_time({recorded}[{RANGE}:1h])", by)


def quantile(
    q: float,
    metric: Metric,
    *matchers: Matcher,
    by: tuple[str, ...] = (),
    window: str = RATE,
    board: bool = True,
) -> str:
    """Return a quantile of a histogram; nothing, and not NaN, where it is empty."""
    selected = select(metric, *matchers, board=board, part="_bucket")
    inner = summed(metric, f"rate({selected}[{window}])", (*by, "le"))
    return f"histogram_quantile({q:g}, {inner}) >= 0"


def largest(expr: str) -> str:
    """Return the largest values first, as many as there is room for in a panel."""
    return f"topk({_MOST_BARS}, {expr})"


def share(part: str, whole: str) -> str:
    """Return part / whole; nothing, and not NaN, where the whole is 0."""
    return f"{part} / ({whole} > 0)"


def summed(metric: Metric, inner: str, by: tuple[str, ...]) -> str:
    """Return the sum over everything but ``by``."""
    _refuse_unknown(metric, [one for one in by if one not in ("job", "instance", "le")])
    grouped = f" by ({', '.join(exposed(one) for one in by)})" if by else ""
    return f"sum{grouped} ({inner})"


def _chosen(
    metric: Metric, matchers: tuple[Matcher, ...], *, instance: bool
) -> list[str]:
    asked = {matcher.label for matcher in matchers}
    return [
        'job=~"$job"',
        *(['instance=~"$instance"'] if instance else []),
        *(
            str(chosen(label, variable))
            for label, variable in CHOSEN.items()
            if label in metric.labels and label not in asked
        ),
    ]


def _refuse_unknown(metric: Metric, labels: list[str]) -> None:
    for label in labels:
        if label not in metric.labels:
            raise ValueError(
                f"{metric.otel} has no label {label}, only {metric.labels}"
            )
