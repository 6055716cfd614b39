"""Budgets: the picture from which one chooses a deadline."""

from __future__ import annotations

from typing import Final

from dashboards import boards, ids, queries
from dashboards.panels import (
    COUNT,
    SECONDS,
    SHARE,
    USD,
    Row,
    Target,
    bars,
    curve,
    table,
)
from dashboards.series import legend
from hangup.otel import names

_NAME: Final = legend(names.RUN_NAME)

PATIENCE: Final = Row(
    "When users leave, when runs finish",
    (
        bars(
            "Abandoned, by age in seconds",
            "Of the runs that were abandoned, the share that was by that age in "
            "seconds. Where it flattens, whoever is still there stays.",
            Target(queries.run_age("abandoned"), "{{le}}"),
            unit=SHARE,
            width=8,
            aside=True,
        ),
        bars(
            "Delivered, by age in seconds",
            "Of the runs that were delivered, the share that was by that age in "
            "seconds. A deadline at 0.99 loses one answer in a hundred.",
            Target(queries.run_age("delivered"), "{{le}}"),
            unit=SHARE,
            width=8,
            aside=True,
        ),
        bars(
            "Patience against duration",
            "A deadline belongs between the time by which nearly all answers are there "
            "and the time by which nearly all users have left.",
            Target(queries.run_quantile(0.5, "delivered"), "half delivered by"),
            Target(queries.run_quantile(0.95, "delivered"), "95 % delivered by"),
            Target(queries.run_quantile(0.99, "delivered"), "99 % delivered by"),
            Target(queries.run_quantile(0.5, "abandoned"), "half of leavers left by"),
            Target(queries.run_quantile(0.95, "abandoned"), "95 % of leavers left by"),
            unit=SECONDS,
            width=8,
        ),
    ),
)

FIT: Final = Row(
    "Do the budgets fit",
    (
        curve(
            "Slack: time left at delivery",
            "p5 near zero: the budget is about to hurt. p50 far from it: it is loose.",
            Target(queries.left_quantile(0.05), "p5"),
            Target(queries.left_quantile(0.5), "p50"),
            unit=SECONDS,
            width=8,
        ),
        curve(
            "Overrun: time past the deadline",
            "Of answers that were delivered late, in observe mode. Enforcing with this "
            "budget would have lost them.",
            Target(queries.over_quantile(0.5), "p50"),
            Target(queries.over_quantile(0.95), "p95"),
            unit=SECONDS,
            width=8,
        ),
        curve(
            "Answers lost, a minute",
            "Enforced runs that were stopped by deadline or a newer request while the "
            "caller was connected.",
            Target(queries.LOST_RATE, _NAME),
            unit=COUNT,
            width=8,
        ),
    ),
)

DRY_RUN: Final = Row(
    "The dry run: what enforcing would do to the runs that are observed",
    (
        table(
            "What enforcing would do, by run name",
            "Of the observed runs: how many it would stop, how many answers it would "
            "lose (delivered after their deadline), how many calls it would refuse, "
            "and the dollars spent after abandonment that it would save.",
            Target(queries.RUNS_OBSERVED, name="Runs observed", unit=COUNT),
            Target(queries.WOULD_STOP, name="Would stop", unit=COUNT),
            Target(queries.WOULD_LOSE, name="Answers lost", unit=COUNT),
            Target(queries.WOULD_REFUSE, name="Calls refused", unit=COUNT),
            Target(queries.WOULD_SAVE, name="Would save", unit=USD),
            Target(queries.RUN_P95, name="95 % over by", unit=SECONDS),
            unit=COUNT,
            width=16,
        ),
        bars(
            "Share of runs whose user left",
            "By run name. Where many leave, answers are slow or unwanted.",
            Target(queries.LEAVE_SHARE, _NAME),
            unit=SHARE,
            width=8,
        ),
    ),
)

BOARD: Final = boards.dashboard(
    ids.BUDGETS,
    "hangup / Budgets",
    "When users leave, when runs finish, and what a deadline would do.",
    (PATIENCE, FIT, DRY_RUN),
    "now-24h",
)
