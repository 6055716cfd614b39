"""What hangup says happened: sums over its OpenTelemetry metrics, nothing else."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True, slots=True)
class Measured:
    """Sums over the metrics of all processes of a pass."""

    delivered_tokens: int
    sunk_tokens: int
    wasted_tokens: int
    wasted_usd: float
    refusals: int
    unknown_usage_calls: int

    def to_json(self) -> dict[str, float]:
        """Return the sums by name."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Runs:
    """How the runs of the agent's own process ended."""

    runs: int = 0
    delivered: int = 0
    late: int = 0
    abandoned: Mapping[str, int] = field(default_factory=dict)


def added(
    before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return what cumulative points gained between two readings of one process."""
    known = {_series(point): point["value"] for point in before}
    return [
        {**point, "value": point["value"] - known.get(_series(point), 0)}
        for point in after
    ]


def measured_of(points: Sequence[Mapping[str, Any]]) -> Measured:
    """Return what the points of all processes add up to."""

    def tokens(fate: str) -> int:
        return int(_sum(points, "hangup.tokens", **{"hangup.fate": fate}))

    wasted = {"hangup.fate": "wasted"}
    refuse = {"hangup.decision": "refuse"}
    return Measured(
        delivered_tokens=tokens("delivered"),
        sunk_tokens=tokens("sunk"),
        wasted_tokens=tokens("wasted"),
        wasted_usd=round(_sum(points, "hangup.cost.usd", **wasted), 6),
        refusals=int(_sum(points, "hangup.refusals", **refuse)),
        unknown_usage_calls=int(_sum(points, "hangup.unknown.calls")),
    )


def runs_of(points: Sequence[Mapping[str, Any]]) -> Runs:
    """Return how the runs ended that one process opened."""

    def ended(outcome: str) -> int:
        return int(_sum(points, "hangup.runs", **{"hangup.outcome": outcome}))

    causes: dict[str, int] = {}
    for point in points:
        attributes = point["attributes"]
        if (
            point["name"] == "hangup.runs"
            and attributes.get("hangup.outcome") == "abandoned"
            and point["value"]
        ):
            cause = attributes["hangup.cause"]
            causes[cause] = causes.get(cause, 0) + int(point["value"])
    return Runs(
        runs=int(_sum(points, "hangup.runs")),
        delivered=ended("delivered"),
        late=ended("late"),
        abandoned=dict(sorted(causes.items())),
    )


def _sum(points: Sequence[Mapping[str, Any]], name: str, **where: str) -> float:
    return sum(
        float(point["value"])
        for point in points
        if point["name"] == name
        and all(point["attributes"].get(key) == value for key, value in where.items())
    )


def _series(point: Mapping[str, Any]) -> tuple[object, ...]:
    return (point["name"], *sorted(point["attributes"].items()))
