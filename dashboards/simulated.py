"""Series for promtool's tests, step by step, with the names of ``series``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from dashboards.series import STOP_DURATION, Kind, exposed
from hangup.otel import names

if TYPE_CHECKING:
    from dashboards.series import Metric

JOB: Final = "agents"
MODEL: Final = "gpt-5"
NAME: Final = "/ask"

Phase = tuple[float, int]
Series = dict[str, str]

_USUAL: Final = {
    names.MODEL: MODEL,
    names.RUN_NAME: NAME,
    names.MODE: "enforce",
    names.CALL_KIND: "inference",
    names.TOKEN_TYPE: "output",
    names.IN_RUN: "true",
    names.FATE: "wasted",
    names.CAUSE: "disconnect",
    names.OUTCOME: "abandoned",
    names.CALLER: "gone",
    names.DECISION: "refuse",
    names.BASIS: "prorated",
    names.STATE: "running",
    names.TENANT: "other",
    names.POLICY: "none",
    names.VERSION: "1.0",
}


def grows(*phases: Phase) -> str:
    """Return a counter at 0 that grows by so much a step for so many steps, each."""
    value, made = 0.0, ["0"]
    for step, steps in phases:
        made.append(f"{value + step:.15g}+{step:.15g}x{steps - 1}")
        # A millionth more: promtool's own sum must not end above it, for that would be
        # a counter that falls, and a restart.
        value += step * steps + 1e-6
    return " ".join(made)


def stands(*phases: tuple[float | None, int]) -> str:
    """Return a gauge that has a value for so many steps, each; None is no sample."""
    return " ".join(
        f"_x{steps}" if value is None else f"{value:.10g}+0x{steps - 1}"
        for value, steps in phases
    )


def named(
    metric: Metric,
    labels: dict[str, str] | None = None,
    *,
    instance: str = "a",
    part: str = "",
    le: str = "",
) -> str:
    """Return the series of a metric with the usual labels but for those given."""
    asked = labels or {}
    every = {label: _USUAL[label] for label in metric.labels} | asked
    pairs: dict[str, str] = {"job": JOB, "instance": instance}
    pairs |= {exposed(label): value for label, value in every.items()}
    if le:
        pairs["le"] = le
    return f"{metric.name}{part}{_braces(pairs)}"


def up(*, instance: str = "a", job: str = JOB) -> str:
    """Return Prometheus' own series of a target."""
    return f"up{_braces({'job': job, 'instance': instance})}"


def stops(step: float, steps: int, seconds: str, mode: str = "enforce") -> Series:
    """Return a histogram of stops that take up to 0.5, 1.0 or 2.5 seconds."""
    bounds = ("0.5", "1.0", "2.5", "+Inf")
    values = grows((0, 10), (step, steps), (0, 120))
    none = grows((0, 130 + steps))
    labels = {names.MODE: mode}
    made = {
        named(STOP_DURATION, labels, part="_bucket", le=bound): (
            values if index >= bounds.index(seconds) else none
        )
        for index, bound in enumerate(bounds)
    }
    return made | {named(STOP_DURATION, labels, part="_count"): values}


def zeros(metrics: tuple[Metric, ...], steps: int, instance: str = "a") -> Series:
    """Return every metric as it is in a process without traffic."""
    made: Series = {}
    for metric in metrics:
        if metric.kind is Kind.HISTOGRAM:
            for part, le in (("_bucket", "1.0"), ("_bucket", "+Inf"), ("_count", "")):
                series = named(metric, instance=instance, part=part, le=le)
                made[series] = stands((0, steps))
        else:
            value = 1 if metric.otel in (names.INFO, names.BUS_UP) else 0
            made[named(metric, instance=instance)] = stands((value, steps))
    return made


def _braces(pairs: dict[str, str]) -> str:
    inside = ", ".join(f'{key}="{value}"' for key, value in pairs.items())
    return f"{{{inside}}}"
