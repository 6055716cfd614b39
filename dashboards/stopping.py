"""Stopping: does what was told to stop stop, and how blind are we."""

from __future__ import annotations

from typing import Final

from dashboards import boards, ids, queries, settings
from dashboards.panels import (
    COUNT,
    SECONDS,
    SHARE,
    Row,
    Target,
    bars,
    curve,
    falling,
    heatmap,
    rising,
    stat,
    table,
)
from dashboards.series import legend
from hangup.otel import names

_NAME: Final = legend(names.RUN_NAME)

NOW: Final = Row(
    "Now",
    (
        stat(
            "Stopping now",
            "Runs that were abandoned and of which something still runs. In observe "
            "mode that is every abandoned run until its own end.",
            Target(queries.STOPPING_NOW),
            unit=COUNT,
        ),
        stat(
            "Oldest still stopping",
            f"How long the oldest has been at it. Above {settings.OLDEST} s for five "
            "minutes pages, where the process enforces; where it observes, an "
            "abandoned run takes as long as it takes.",
            Target(queries.OLDEST),
            unit=SECONDS,
            steps=rising(settings.OLDEST / 2, settings.OLDEST),
        ),
        stat(
            f"Stopped within {settings.SLOW_STOP} s",
            "Share of enforced stops. Below 95 % a ticket is filed.",
            Target(queries.STOPPED_IN_TIME),
            unit=SHARE,
            steps=falling(0.95, 0.99),
            empty="no stops",
        ),
        stat(
            "Stops",
            "Enforced runs that were stopped, in the range looked at.",
            Target(queries.STOPS),
            unit=COUNT,
            empty="no stops",
        ),
        stat(
            "Unsettled tasks",
            "Pieces of work that had not stopped after HANGUP_SETTLE seconds.",
            Target(queries.UNSETTLED),
            unit=COUNT,
            steps=rising(1, 10),
        ),
        stat(
            "Swallowed cancels",
            "Runs in which a task swallowed the stop and wanted to spend again. It was "
            "refused; but find the 'except'.",
            Target(queries.SWALLOWED),
            unit=COUNT,
            steps=rising(1, settings.SWALLOWED_LEAST),
        ),
    ),
)

TIME: Final = Row(
    "Time to stop (enforced runs)",
    (
        heatmap(
            "Time to stop",
            "From the moment the cause took effect until nothing of the run was "
            "running any more.",
            Target(queries.STOP_BUCKETS, "{{le}}"),
        ),
        curve(
            "Time to stop, quantiles",
            f"The line is the {settings.SLOW_STOP} s at which the 95th percentile "
            "becomes a ticket.",
            Target(queries.stop_quantile(0.5), "p50"),
            Target(queries.stop_quantile(0.95), "p95"),
            Target(queries.stop_quantile(0.99), "p99"),
            unit=SECONDS,
            steps=((None, "green"), (settings.SLOW_STOP, "red")),
        ),
        curve(
            "Runs, by state",
            "Those that run and those that are stopping, over all processes.",
            Target(queries.ACTIVE, legend(names.STATE)),
            unit=COUNT,
        ),
        curve(
            "Oldest still stopping, by process",
            "A process that stays high has work that cannot be stopped: a thread, or "
            "code that swallows the stop.",
            Target(queries.OLDEST_BY_PROCESS, "{{job}} {{instance}}"),
            unit=SECONDS,
            steps=((None, "green"), (settings.OLDEST, "red")),
        ),
    ),
)

WHO: Final = Row(
    "Who does not stop",
    (
        bars(
            "Unsettled tasks by run name",
            "Work that outlived the patience of HANGUP_SETTLE.",
            Target(queries.UNSETTLED_BY_NAME, _NAME),
            unit=COUNT,
        ),
        bars(
            "Swallowed cancels by run name",
            "Where to look for a broad 'except' around an await.",
            Target(queries.SWALLOWED_BY_NAME, _NAME),
            unit=COUNT,
        ),
        curve(
            "Refused calls, a minute",
            "'refuse' was refused; 'would_refuse' would have been, had it been "
            "enforced.",
            Target(
                queries.REFUSED,
                legend(names.DECISION, names.CALL_KIND),
            ),
            unit=COUNT,
        ),
    ),
)

BLIND: Final = Row(
    "How blind we are",
    (
        stat(
            "Calls without usage",
            "Model calls that ended without any usage, as a share of those in runs. "
            "Their tokens are in no count.",
            Target(queries.UNKNOWN_SHARE),
            unit=SHARE,
            steps=rising(settings.UNKNOWN_SHARE / 2, settings.UNKNOWN_SHARE),
            empty="no calls",
        ),
        stat(
            "Tokens without a price",
            "They are in no dollars. A price file (HANGUP_PRICES) mends that.",
            Target(queries.UNPRICED_SHARE),
            unit=SHARE,
            steps=rising(settings.UNPRICED_SHARE / 2, settings.UNPRICED_SHARE),
            empty="no calls",
        ),
        stat(
            "Tokens outside runs",
            "Calls that belong to no run can be neither wasted nor stopped.",
            Target(queries.OUTSIDE_SHARE),
            unit=SHARE,
            steps=rising(settings.OUTSIDE_SHARE / 2, settings.OUTSIDE_SHARE),
            empty="no calls",
        ),
        stat(
            "Tokens not reported",
            "Prorated or estimated, because the call was cut or its usage was not "
            "asked for.",
            Target(queries.ESTIMATED_SHARE),
            unit=SHARE,
            empty="no calls",
        ),
        stat(
            "Outcome unknown",
            "Calls that were cut and that the provider may have finished, and billed.",
            Target(queries.OUTCOME_UNKNOWN),
            unit=COUNT,
            empty="no calls",
        ),
        stat(
            "Requests that lost baggage",
            "Their baggage had no room for all of hangup's entries; the compact header "
            "went along.",
            Target(queries.BAGGAGE),
            unit=COUNT,
            steps=rising(1, settings.BAGGAGE_LEAST),
        ),
        bars(
            "Calls without usage by model",
            "Often streams whose usage was not asked for.",
            Target(queries.UNKNOWN_BY_MODEL, legend(names.MODEL)),
            unit=COUNT,
        ),
        table(
            "Processes by version, mode and policy",
            "What runs where. Mode 'unset' observes zero-code traffic and enforces "
            "runs opened in code.",
            Target(queries.VERSIONS, name="Processes"),
            unit=COUNT,
            width=12,
        ),
        stat(
            "Bus health",
            "Share of processes that hear the bus: remote kills reach only those. "
            "Empty where no bus is configured.",
            Target(queries.BUS, "{{job}}"),
            unit=SHARE,
            width=6,
            height=8,
            steps=falling(settings.BUS_DOWN_SHARE, 0.99),
            empty="no bus",
        ),
    ),
)

BOARD: Final = boards.dashboard(
    ids.STOPPING,
    "hangup / Stopping",
    "Whether what was told to stop stops, and what hangup cannot see.",
    (NOW, TIME, WHO, BLIND),
    "now-3h",
)
