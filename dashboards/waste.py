"""Wasted spend: the picture for the boss, and where the money goes."""

from __future__ import annotations

from typing import Final

from dashboards import boards, ids, queries, settings
from dashboards.panels import (
    COUNT,
    SECONDS,
    SHARE,
    USD,
    Row,
    Target,
    bars,
    curve,
    rising,
    stat,
    table,
)
from dashboards.series import legend
from hangup.otel import names

_MODE: Final = legend(names.MODE)
_LIMITS: Final = rising(settings.OBJECTIVE, settings.WASTE_SHARE)

MONTH: Final = Row(
    "This month",
    tuple(
        panel.this_month()
        for panel in (
            stat(
                "Spent after abandonment",
                "Dollars of this month that were spent on runs after their caller had "
                "gone, their deadline had passed or they were superseded. Sum of the "
                "recorded full hours; in the very first hour, of the last hour.",
                Target(queries.MONTH_WASTED),
                unit=USD,
                empty="no spend",
            ),
            stat(
                "Share of metered spend",
                "The same, divided by everything any call reported, in a run or not. "
                f"The objective is {settings.OBJECTIVE:.0%}; a ticket is filed at "
                f"{settings.WASTE_SHARE:.0%} of an hour.",
                Target(queries.MONTH_SHARE),
                unit=SHARE,
                steps=_LIMITS,
                empty="no spend",
            ),
            stat(
                "Unknown, at most",
                "What calls that ended without usage may have cost, at most: the upper "
                "bound of their tokens at the average price. By so much the numbers "
                "beside may be too low.",
                Target(queries.MONTH_UNKNOWN),
                unit=USD,
                empty="no spend",
            ),
            stat(
                "Coverage",
                "Share of metered spend that belonged to a run. What does not can be "
                "neither wasted nor stopped.",
                Target(queries.MONTH_COVERAGE),
                unit=SHARE,
                steps=(
                    (None, "red"),
                    (1 - 2 * settings.OUTSIDE_SHARE, "orange"),
                    (1 - settings.OUTSIDE_SHARE, "green"),
                ),
                empty="no spend",
            ),
            stat(
                "Projected for the month",
                "What is wasted so far, at the same pace to the end of the month. Days "
                "are UTC's.",
                Target(queries.MONTH_PROJECTED),
                unit=USD,
                empty="no spend",
            ),
            stat(
                "Avoided (estimate)",
                "An estimate of what refusing and cutting calls kept from being spent. "
                "It is measured by nobody, and in no other number here.",
                Target(queries.MONTH_AVOIDED),
                unit=USD,
                empty="nothing",
            ),
        )
    ),
)

ARMS: Final = Row(
    "Observed against enforced, at the same time",
    (
        stat(
            "Wasted per 1,000 runs",
            "Where enforcing works, this is lower for the enforced runs than for the "
            "observed ones of the same time.",
            Target(queries.WASTE_PER_1000, _MODE),
            unit=USD,
            width=7,
        ),
        stat(
            "Delivered share",
            "Share of runs whose caller got the answer, late ones included. It must "
            "not fall where runs are enforced.",
            Target(queries.DELIVERED_SHARE, _MODE),
            unit=SHARE,
            width=7,
        ),
        stat(
            "Answers lost",
            "Enforced runs that were stopped by their deadline or a newer request "
            "while the caller was still connected. "
            f"{settings.HARM_LEAST} in ten minutes, and {settings.HARM_SHARE:.0%} of "
            "the runs, page.",
            Target(queries.ANSWERS_LOST),
            unit=COUNT,
            width=4,
            steps=rising(1, settings.HARM_LEAST),
        ),
        stat(
            "Runs",
            "How many runs were over, by mode: few runs prove little.",
            Target(queries.RUNS_BY_MODE, _MODE),
            unit=COUNT,
            width=6,
        ),
    ),
)

OVER_TIME: Final = Row(
    "Over time",
    (
        curve(
            "Spent on abandoned runs, an hour",
            "Before abandonment: unavoidable. After it: what stopping in time keeps. "
            "The purple marks are changes of mode.",
            Target(queries.SUNK_RATE, "before abandonment (unavoidable)"),
            Target(queries.WASTED_RATE, "after abandonment (avoidable)"),
            unit=USD,
            stack=True,
        ),
        curve(
            "Share of metered spend wasted, last hour",
            "The lines are the objective and the share at which a ticket is filed.",
            Target(queries.SHARE_NOW, "wasted"),
            unit=SHARE,
            steps=_LIMITS,
        ),
    ),
)

WHERE: Final = Row(
    "Where it goes, in the range looked at",
    (
        bars(
            "Wasted by cause",
            "Why the runs were abandoned on which money was spent afterwards.",
            Target(queries.wasted_by(names.CAUSE), legend(names.CAUSE)),
            unit=USD,
        ),
        bars(
            "Wasted by model",
            "The requested model; beyond the first 30 they are in 'other'.",
            Target(queries.wasted_by(names.MODEL), legend(names.MODEL)),
            unit=USD,
        ),
        bars(
            "Wasted by run name",
            "The route or declared name; beyond the first 50 they are in 'other'.",
            Target(
                queries.wasted_by(names.RUN_NAME),
                legend(names.RUN_NAME),
            ),
            unit=USD,
        ),
        bars(
            "Wasted by tenant",
            "Tenants of HANGUP_TENANTS; everybody else is 'other'. It heeds neither "
            "run name nor model.",
            Target(queries.WASTED_BY_TENANT, legend(names.TENANT)),
            unit=USD,
        ),
        table(
            "Worst offenders",
            "Where to begin. A row leads to the traces of its runs.",
            Target(queries.WORST, name="Wasted"),
            unit=USD,
            links=(boards.traces_of_row(),),
        ),
        curve(
            "Avoided (estimate), an hour",
            "An estimate of what refusing and cutting calls kept from being spent.",
            Target(queries.AVOIDED_RATE, "avoided (estimate)"),
            unit=USD,
        ),
        bars(
            "Wasted tool time by run name",
            "Seconds that tools ran for runs that were abandoned: a tool costs too.",
            Target(queries.TOOL_TIME, legend(names.RUN_NAME)),
            unit=SECONDS,
        ),
        bars(
            "Wasted tokens by type",
            "Tokens of unpriced models are here and in no dollars.",
            Target(queries.WASTED_TOKENS, legend(names.TOKEN_TYPE)),
            unit=COUNT,
        ),
    ),
)

BOARD: Final = boards.dashboard(
    ids.WASTE,
    "hangup / Wasted spend",
    "What agents spend after the one who asked has gone.",
    (MONTH, ARMS, OVER_TIME, WHERE),
    "now-24h",
)
