"""Unit tests of promtool: a file for each alert, and two of what none may fire at."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from dashboards import ids, series
from dashboards.alerts import ALERTS, PAGE
from dashboards.scenarios import CASES, Case
from dashboards.simulated import JOB, grows, named, stands, up, zeros
from hangup.otel import names

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dashboards.panels import Json


_QUIET_TIMES: Final = (1, 10, 30, 65, 120, 235)


def _quiet() -> tuple[Case, ...]:
    alive = {up(): stands((1, 240)), named(series.INFO): stands((1, 240))}
    at_rest = zeros(series.ALL, 240)
    one = {
        metric: stands((0, 10), (1, 230))
        for metric in (
            named(series.RUNS),
            named(series.RUNS, {names.CAUSE: "deadline", names.CALLER: "connected"}),
            named(series.COST),
            named(series.METERED_COST),
            named(series.CALLS),
            named(series.UNKNOWN),
            named(series.SWALLOWED),
            named(series.BAGGAGE_LOST),
        )
    }
    fine = {names.FATE: "delivered", names.CAUSE: "none"}
    delivered = {
        names.OUTCOME: "delivered",
        names.CAUSE: "none",
        names.CALLER: "connected",
    }
    works = {
        named(series.RUNS, delivered): 20.0,
        named(series.COST, fine): 2.0,
        named(series.METERED_COST): 2.0,
        named(series.METERED_TOKENS): 20_000.0,
        named(series.CALLS, fine): 20.0,
    }
    works |= {named(series.RUNS): 0.2, named(series.COST): 0.02}
    restarted = {
        name: f"{grows((step, 100))} {grows((step, 138))}"
        for name, step in works.items()
    }
    appears = {
        # The first sample of a label set is its first increment already.
        named(series.RUNS, {names.RUN_NAME: "/new"}): stands((None, 30), (500, 210)),
        named(series.COST, {names.RUN_NAME: "/new"}): stands((None, 30), (500, 210)),
        named(series.SWALLOWED, {names.RUN_NAME: "/new"}): stands(
            (None, 30), (500, 210)
        ),
    }
    busy = {name: grows((step, 239)) for name, step in works.items()}
    return (
        Case("no traffic", alive | at_rest, silent=_QUIET_TIMES),
        Case("one abandoned run of one", alive | at_rest | one, silent=_QUIET_TIMES),
        Case("a worker restarts", alive | restarted, silent=_QUIET_TIMES),
        Case("a new label", alive | busy | appears, silent=_QUIET_TIMES),
    )


def _observing() -> tuple[Case, ...]:
    """A day of observing 3,000 runs a minute, of which 40 % are walked away from.

    A run goes on for ten minutes after its user left, and costs ten cents.
    """
    observe = {names.MODE: "observe"}
    delivered = observe | {
        names.OUTCOME: "delivered",
        names.CAUSE: "none",
        names.CALLER: "connected",
    }
    late = delivered | {names.OUTCOME: "late"}
    step, steps = 5, 24 * 12
    per_minute = {
        named(series.RUNS, delivered): 1_700.0,
        named(series.RUNS, late): 100.0,
        named(series.RUNS, observe): 1_200.0,
        named(series.COST, observe): 60.0,
        named(series.METERED_COST): 300.0,
        named(series.METERED_TOKENS): 3_000_000.0,
        named(series.CALLS): 3_000.0,
    }
    made = {name: grows((step * each, steps)) for name, each in per_minute.items()}
    made |= {
        up(): stands((1, steps)),
        named(series.INFO, observe): stands((1, steps)),
        named(series.OLDEST): stands((0, 2), (600, steps - 2)),
    }
    times = tuple(range(60, step * steps, 60))
    return (Case("a day of observing", made, silent=times, step=step),)


def promtool_tests() -> Iterator[tuple[str, Json]]:
    """Yield the name and the content of each test file."""
    severities = {alert.name: alert.severity for alert in ALERTS}
    for name, cases in CASES.items():
        yield name, _file(cases, name, severities[name])
    yield "quiet", _file(_quiet())
    yield "observing", _file(_observing(), severity=PAGE)


def _file(cases: tuple[Case, ...], alert: str = "", severity: str = "") -> Json:
    step = max(case.step for case in cases)
    return {
        "rule_files": ["../prometheus/hangup.rules.yaml"],
        "evaluation_interval": f"{step}m",
        # Else in any order, and an alert may ask for the hour that is recorded next.
        "group_eval_order": [ids.RECORD_GROUP, ids.ALERT_GROUP],
        "tests": [_test(case, alert, severity) for case in cases],
    }


def _test(case: Case, alert: str, severity: str) -> Json:
    which = f'alertname="{alert}", ' if alert else ""
    if severity and not alert:
        which = f'severity="{severity}", '
    expr = f'ALERTS{{{which}alertstate="firing"}}'
    where = f'instance="{case.instance}", ' if case.instance else ""
    firing = {
        "labels": f'ALERTS{{alertname="{alert}", alertstate="firing", {where}'
        f'job="{JOB}", severity="{severity}"}}',
        "value": 1,
    }
    times = [(at, [firing]) for at in case.fires] + [(at, []) for at in case.silent]
    return {
        "name": case.about,
        "interval": f"{case.step}m",
        "input_series": [
            {"series": name, "values": values} for name, values in case.series.items()
        ],
        "promql_expr_test": [
            {"expr": expr, "eval_time": f"{at}m", "exp_samples": samples}
            for at, samples in sorted(times, key=lambda pair: pair[0])
        ],
    }
