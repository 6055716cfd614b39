"""Rules and alerts, judged by promtool; and every query of a panel, by its parser.

A case that needs nothing but rules is named after it.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from dashboards import files, queries, series, simulated
from dashboards.alerts import ALERTS
from dashboards.promql import increase, is_
from dashboards.scenarios import CASES
from dashboards.simulated import grows, named, stands
from dashboards.unittests import promtool_tests
from dashboards.yamltext import to_yaml
from support.requires import require

from hangup.otel import names

if TYPE_CHECKING:
    from collections.abc import Iterable

GENERATED = Path(files.__file__).parent / "generated"
RULES = GENERATED / "prometheus/hangup.rules.yaml"

pytestmark = pytest.mark.timeout(300)


def promtool(*arguments: str | Path) -> str:
    """What promtool says, if it is content; fails with it otherwise."""
    require("promtool")
    done = subprocess.run(  # noqa: S603
        ["promtool", *map(str, arguments)],  # noqa: S607
        capture_output=True,
        text=True,
        check=False,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said[-4_000:]
    return said


def filled(expr: str, *, over: str = "1h") -> str:
    """A panel's query as Grafana sends it with everything chosen."""
    expr = expr.replace("$__range", over).replace("$__rate_interval", "5m")
    return re.sub(r'"\$\w+"', '".*"', expr)


def test_the_rules_are_rules() -> None:
    assert f"{len(ALERTS) + 7} rules found" in promtool("check", "rules", RULES)


def test_every_alert_fires_and_resolves_and_stays_silent() -> None:
    """All of them, and what nobody may fire at, in one go: it is the slow one."""
    tests = sorted((GENERATED / "tests").glob("*.yaml"))
    assert promtool("test", "rules", *tests).count("SUCCESS") == len(ALERTS) + 2


def test_a_day_of_observing_would_page_if_it_were_enforcing(tmp_path: Path) -> None:
    """The day in which 40 % walk away is silent because of the mode, not for want of
    numbers."""
    made = dict(promtool_tests())["observing"]
    made["rule_files"] = [str(RULES)]
    enforcing = to_yaml(made).replace(r"\"observe\"", r"\"enforce\"")
    path = tmp_path / "enforcing.yaml"
    path.write_text(enforcing)
    require("promtool")
    with pytest.raises(AssertionError, match="HangupRunsNotStopping") as failed:
        promtool("test", "rules", path)
    assert "HangupWasteRate" in str(failed.value)


def test_every_alert_has_a_case_in_which_it_fires_and_one_in_which_not() -> None:
    assert list(CASES) == [alert.name for alert in ALERTS]
    for name, cases in CASES.items():
        first = cases[0]
        assert first.fires, name
        assert min(first.silent) < min(first.fires), f"{name} is silent before"
        assert max(first.silent) > max(first.fires), f"{name} resolves"
        others = [case for case in cases[1:] if case.silent and not case.fires]
        assert others or name == "HangupBrakeTripped", name


def test_a_case_that_is_not_as_said_fails(tmp_path: Path) -> None:
    """The tests can fail: without its data, the alert that should fire does not."""
    require("promtool")
    made = dict(promtool_tests())["HangupBusDown"]
    made["rule_files"] = [str(RULES)]
    made["tests"] = made["tests"][:1]
    made["tests"][0]["input_series"] = []
    path = tmp_path / "broken.yaml"
    path.write_text(to_yaml(made))
    with pytest.raises(AssertionError, match="FAILED"):
        promtool("test", "rules", path)


def test_target_promql_every_query_of_a_panel_parses(tmp_path: Path) -> None:
    """As recording rules, for that is what promtool of Debian parses."""
    exprs = {
        filled(target["expr"])
        for board in files.BOARDS.values()
        for panel in board["panels"]
        for target in panel.get("targets", ())
    }
    exprs |= {
        filled(mark["expr"])
        for board in files.BOARDS.values()
        for mark in board["annotations"]["list"]
    }
    listed = [
        {"record": f"panel:{index}", "expr": expr}
        for index, expr in enumerate(sorted(exprs))
    ]
    path = tmp_path / "panels.yaml"
    path.write_text(to_yaml({"groups": [{"name": "panels", "rules": listed}]}))
    said = promtool("check", "rules", path)
    assert f"{len(exprs)} rules found" in said


def asks(
    tmp_path: Path,
    input_series: dict[str, str],
    expected: Iterable[tuple[str, int, list[dict[str, Any]]]],
    step: str = "1m",
    evaluated: str = "1m",
) -> None:
    """Hold what queries answer at a minute; the recording rules run along."""
    made = {
        "rule_files": [str(RULES)],
        "evaluation_interval": evaluated,
        "tests": [
            {
                "interval": step,
                "input_series": [
                    {"series": name, "values": values}
                    for name, values in input_series.items()
                ],
                "promql_expr_test": [
                    {"expr": expr, "eval_time": f"{at}m", "exp_samples": samples}
                    for expr, at, samples in expected
                ],
            }
        ],
    }
    path = tmp_path / "asks.yaml"
    path.write_text(to_yaml(made))
    promtool("test", "rules", path)


YES = [{"labels": "{}", "value": 1}]


def test_g1_first_increment_invisible(tmp_path: Path) -> None:
    """The series stands at 0 before the one abandoned run: both numbers show it."""
    tokens = increase(series.TOKENS, queries.WASTED, window="5m", board=False)
    runs = increase(series.RUNS, queries.ABANDONED, window="5m", board=False)
    late = is_(names.RUN_NAME, "/late")
    trap = increase(series.TOKENS, late, window="5m", board=False)
    scraped = {
        named(series.TOKENS): stands((0, 8), (500, 40)),
        named(series.RUNS): stands((0, 8), (1, 40)),
        # What the zeros are for: seen first at its increment, it has not grown.
        named(series.TOKENS, {names.RUN_NAME: "/late"}): stands((None, 8), (500, 40)),
    }
    asks(
        tmp_path,
        scraped,
        [
            (f"{tokens} >= bool 500", 3, YES),
            (f"{runs} >= bool 1", 3, YES),
            (trap, 3, [{"labels": "{}", "value": 0}]),
        ],
        step="15s",
    )


def test_g3_nan_when_quiet(tmp_path: Path) -> None:
    """Every share of a panel is empty when nothing happens, and exact when little does.

    One run in ten minutes, one of three of them abandoned.
    """
    shares = [
        filled(expr, over="30m")
        for expr in (
            queries.MONTH_SHARE,
            queries.SHARE_NOW,
            queries.UNKNOWN_SHARE,
            queries.UNPRICED_SHARE,
            queries.OUTSIDE_SHARE,
            queries.ESTIMATED_SHARE,
            queries.WASTE_PER_1000,
            queries.DELIVERED_SHARE,
            queries.STOPPED_IN_TIME,
            queries.stop_quantile(0.95),
            queries.run_age("delivered"),
        )
    ]
    quiet = simulated.zeros(series.ALL, 60)
    asks(tmp_path, quiet, [(expr, 40, []) for expr in shares])

    delivered = {names.OUTCOME: "delivered", names.CAUSE: "none"}
    few = {
        named(series.RUNS): stands((0, 15), (1, 45)),
        named(series.RUNS, delivered): stands((0, 5), (1, 20), (2, 35)),
    }
    share = filled(queries.DELIVERED_SHARE, over="30m")
    asks(
        tmp_path,
        few,
        [(f"sum(abs({share} - 2 / 3) < bool 0.05)", 31, YES)],
    )


def test_c12_multi_worker_sawtooth(tmp_path: Path) -> None:
    """Four workers, 40 runs of 100 tokens, one restarts: 40 runs and 4,000 tokens."""
    scraped: dict[str, str] = {}
    for worker in ("a", "b", "c", "d"):
        for metric, of_one in ((series.RUNS, 1), (series.TOKENS, 100)):
            values = grows((0, 4), (of_one, 10), (0, 26))
            if worker == "b":  # five, then a new process, then five more
                values = f"{grows((0, 4), (of_one, 5))} {grows((of_one, 5), (0, 25))}"
            scraped[named(metric, instance=worker)] = values
    runs = increase(series.RUNS, window="10m", board=False)
    tokens = increase(series.TOKENS, window="10m", board=False)
    asks(
        tmp_path,
        scraped,
        [
            (f"abs({runs} - 40) <= bool 1", 3, YES),
            (f"abs({tokens} - 4000) <= bool 100", 3, YES),
        ],
        step="5s",
    )


def test_a_month_is_the_sum_of_its_hours(tmp_path: Path) -> None:
    """Ten dollars an hour for ten hours and a restart in between: 100 within 2 %."""
    step = 10 / 60
    before, after = grows((0, 59), (step, 240)), grows((step, 360), (0, 120))
    scraped = {named(series.COST): f"{before} {after}"}
    month = filled(queries.MONTH_WASTED, over="12h")
    right = [(f"abs({month} - 100) <= bool 2", 720, YES)]
    asks(tmp_path, scraped, right, evaluated="5m")
