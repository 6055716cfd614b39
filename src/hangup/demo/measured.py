"""What hangup says happened: sums over its OpenTelemetry metrics, nothing else."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True, slots=True)
class Measured:
    """Sums over the metrics of all processes of a pass.

    Attributes:
        delivered_tokens: Input and output, as the other tokens.
        sunk_tokens: Before T0.
        wasted_tokens: After it.
        wasted_usd: The dollars for them.
        refusals: Calls that were refused.
        unknown_usage_calls: Calls with tokens that nobody can know.
        unknown_tokens_bound: The most that those may be.
        outcome_unknown_calls: Calls whose provider may have gone on unseen.
        estimated_tokens: How many of the tokens above are estimates.
        sunk_estimated_tokens: How many of the sunk.
        wasted_estimated_tokens: How many of the wasted.
    """

    delivered_tokens: int
    sunk_tokens: int
    wasted_tokens: int
    wasted_usd: float
    refusals: int
    unknown_usage_calls: int
    unknown_tokens_bound: int = 0
    outcome_unknown_calls: int = 0
    estimated_tokens: int = 0
    sunk_estimated_tokens: int = 0
    wasted_estimated_tokens: int = 0

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

    def estimated(**where: str) -> int:
        where = {"hangup.basis": "estimated", **where}
        return int(_sum(points, "hangup.estimated.tokens", **where))

    sunk, wasted = {"hangup.fate": "sunk"}, {"hangup.fate": "wasted"}
    refuse = {"hangup.decision": "refuse"}
    return Measured(
        delivered_tokens=tokens("delivered"),
        sunk_tokens=tokens("sunk"),
        wasted_tokens=tokens("wasted"),
        wasted_usd=round(_sum(points, "hangup.cost.usd", **wasted), 6),
        refusals=int(_sum(points, "hangup.refusals", **refuse)),
        unknown_usage_calls=int(_sum(points, "hangup.unknown.calls")),
        unknown_tokens_bound=int(_sum(points, "hangup.unknown.tokens.bound")),
        outcome_unknown_calls=int(_sum(points, "hangup.outcome_unknown.calls")),
        estimated_tokens=estimated(),
        sunk_estimated_tokens=estimated(**sunk),
        wasted_estimated_tokens=estimated(**wasted),
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
