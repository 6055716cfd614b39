from __future__ import annotations

from typing import Any

from support.demo import point

from hangup.demo.measured import Measured, Runs, added, measured_of, runs_of


def _guess(value: float, fate: str, basis: str) -> dict[str, Any]:
    name = "hangup.estimated.tokens"
    return point(name, value, hangup_fate=fate, hangup_basis=basis)


def test_measured_sums_types_models_and_processes_by_fate() -> None:
    points = [
        point("hangup.tokens", 100, hangup_fate="delivered", model="a"),
        point("hangup.tokens", 20, hangup_fate="delivered", model="b"),
        point("hangup.tokens", 7, hangup_fate="sunk"),
        point("hangup.tokens", 5, hangup_fate="wasted"),
        point("hangup.tokens", 999, hangup_fate="after"),
        point("hangup.cost.usd", 0.25, hangup_fate="wasted"),
        point("hangup.cost.usd", 4.0, hangup_fate="sunk"),
        point("hangup.refusals", 3, hangup_decision="refuse"),
        point("hangup.refusals", 8, hangup_decision="would_refuse"),
        point("hangup.unknown.calls", 2, model="a"),
        point("hangup.unknown.calls", 1, model="b"),
        point("hangup.unknown.tokens.bound", 70, model="a"),
        point("hangup.unknown.tokens.bound", 5, model="b"),
        point("hangup.outcome_unknown.calls", 4, model="a"),
        _guess(11, "sunk", "estimated"),
        _guess(3, "wasted", "estimated"),
        _guess(2, "delivered", "estimated"),
        _guess(500, "sunk", "prorated"),
    ]
    assert measured_of(points) == Measured(
        delivered_tokens=120,
        sunk_tokens=7,
        wasted_tokens=5,
        wasted_usd=0.25,
        refusals=3,
        unknown_usage_calls=3,
        unknown_tokens_bound=75,
        outcome_unknown_calls=4,
        estimated_tokens=16,
        sunk_estimated_tokens=11,
        wasted_estimated_tokens=3,
    )


def test_runs_are_counted_by_outcome_and_cause_and_zeros_are_no_causes() -> None:
    gone = {"hangup_outcome": "abandoned"}
    points = [
        point("hangup.runs", 5, hangup_outcome="delivered", hangup_cause="none"),
        point("hangup.runs", 1, hangup_outcome="late", hangup_cause="none"),
        point(
            "hangup.runs", 2, hangup_cause="disconnect", hangup_caller="gone", **gone
        ),
        point("hangup.runs", 1, hangup_cause="disconnect", hangup_caller="x", **gone),
        point("hangup.runs", 3, hangup_cause="deadline", **gone),
        point("hangup.runs", 0, hangup_cause="killed", **gone),
    ]
    assert runs_of(points) == Runs(
        runs=12, delivered=5, late=1, abandoned={"deadline": 3, "disconnect": 3}
    )


def test_a_pass_is_what_it_added_to_each_series() -> None:
    before = [point("hangup.runs", 5, hangup_outcome="late")]
    after = [
        point("hangup.runs", 7, hangup_outcome="late"),
        point("hangup.runs", 4, hangup_outcome="delivered"),
    ]
    assert [one["value"] for one in added(before, after)] == [2, 4]
