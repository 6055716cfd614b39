"""The dashboards load anywhere: the public linter's rules, the grid, the data source.

Each test of a rule is named after it. Exceptions are listed with their reasons.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any

import pytest
from dashboards import alerts, boards, files, ids, panels, rules, series
from dashboards.promql import CAUSE_CHOSEN, CHOSEN
from dashboards.series import exposed

from hangup.otel import names

Json = dict[str, Any]

BOARDS = {board["uid"]: board for board in files.BOARDS.values()}
PANELS = [
    pytest.param(panel, id=f"{uid}: {panel['title']}")
    for uid, board in BOARDS.items()
    for panel in board["panels"]
    if panel["type"] != "row"
]
TARGETS = [
    (uid, panel["title"], target["expr"])
    for uid, board in BOARDS.items()
    for panel in board["panels"]
    for target in panel.get("targets", ())
]
every_board = pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS)
every_panel = pytest.mark.parametrize("panel", PANELS)
every_target = pytest.mark.parametrize(
    "expr", [pytest.param(expr, id=f"{uid}: {title}") for uid, title, expr in TARGETS]
)

SELECTOR = re.compile(r"\b(hangup[:_][a-z0-9:_]+)(\{[^}]*\})?")


def selectors(expr: str) -> list[tuple[str, str]]:
    """Every metric that is selected, with its matchers."""
    labels = {exposed(label) for metric in series.ALL for label in metric.labels}
    labels.add(exposed(names.POLICY))
    return [
        (name, braces) for name, braces in SELECTOR.findall(expr) if name not in labels
    ]


def variable(board: Json, name: str) -> Json:
    [found] = [one for one in board["templating"]["list"] if one["name"] == name]
    return dict(found)


@every_board
def test_template_datasource(board: Json) -> None:
    source = variable(board, ids.DATASOURCE)
    assert source["type"] == "datasource"
    assert source["query"] == "prometheus"
    assert source["label"] == "Data source"


@every_board
def test_template_job(board: Json) -> None:
    assert_chooses(board, "job", "Job")


@every_board
def test_template_instance(board: Json) -> None:
    assert_chooses(board, "instance", "Instance")


@every_board
def test_the_variables_are_job_run_name_model_and_cause(board: Json) -> None:
    assert_chooses(board, CHOSEN[names.RUN_NAME], "Run name")
    assert_chooses(board, CHOSEN[names.MODEL], "Model")
    assert_chooses(board, CAUSE_CHOSEN, "Cause")


def assert_chooses(board: Json, name: str, label: str) -> None:
    found = variable(board, name)
    assert found["type"] == "query"
    assert found["label"] == label
    assert found["datasource"] == panels.SOURCE
    assert found["multi"]
    assert found["includeAll"]
    assert found["allValue"] == ".*"


@every_board
def test_template_label_promql(board: Json) -> None:
    known = {metric.name: metric for metric in series.ALL}
    for one in board["templating"]["list"]:
        if one["type"] != "query":
            continue
        pattern = r"label_values\((\w+)(\{job=~\"\$job\"\})?, (\w+)\)"
        asked = re.fullmatch(pattern, one["query"]["query"])
        assert asked, one["query"]["query"]
        metric = known[asked[1]]
        labels = {exposed(label) for label in metric.labels} | {"job", "instance"}
        assert asked[3] in labels


@every_board
def test_template_on_time_change_reload(board: Json) -> None:
    for one in board["templating"]["list"]:
        if one["type"] == "query":
            assert one["refresh"] == 2, one["name"]


@every_panel
def test_panel_datasource(panel: Json) -> None:
    assert panel["datasource"] == panels.SOURCE
    for target in panel["targets"]:
        assert target["datasource"] == panels.SOURCE


@every_panel
def test_panel_title_description(panel: Json) -> None:
    assert panel["title"]
    assert len(panel["description"]) > 30
    assert panel["description"].endswith(".")


@every_panel
def test_panel_units(panel: Json) -> None:
    assert panel["fieldConfig"]["defaults"]["unit"] in {
        panels.USD,
        panels.SHARE,
        panels.SECONDS,
        panels.COUNT,
        panels.WHOLE,
    }
    assert panel["fieldConfig"]["defaults"]["noValue"]


@every_panel
def test_panel_no_targets(panel: Json) -> None:
    assert panel["targets"]
    refs = [target["refId"] for target in panel["targets"]]
    assert len(set(refs)) == len(refs)


@every_target
def test_target_promql_reads_what_there_is(expr: str) -> None:
    """That it parses, promtool and a real Prometheus say; here: that it is there."""
    there = {one.name for one in rules.RECORDS}
    for metric in series.ALL:
        if metric.kind is series.Kind.HISTOGRAM:
            there |= {metric.name + part for part in ("_bucket", "_count", "_sum")}
        else:
            there.add(metric.name)
    asked = {name for name, _ in selectors(expr)}
    assert asked
    assert asked <= there


@every_target
def test_target_rate_interval(expr: str) -> None:
    """A rate is over one step. Exceptions, and why.

    - a total is the increase over the range looked at: `$__range`
    - "last hour" says so in its title; the month's recorded hours are hours
    - a quantile of run durations over the range: of a whole day, not of one step
    """
    for function, window in re.findall(r"\b(\w+)\([^()\[]*\[([^\]]+)\]", expr):
        allowed = {
            "rate": {"$__rate_interval", "$__range"},
            "increase": {"$__rate_interval", "$__range", "1h"},
            "sum_over_time": {"$__range:1h"},
        }[function]
        assert window in allowed, (function, window)
        if function == "rate" and window == "$__range":
            assert "histogram_quantile" in expr


@every_target
def test_target_job(expr: str) -> None:
    for name, braces in selectors(expr):
        assert 'job=~"$job"' in braces, name


@every_target
def test_target_instance(expr: str) -> None:
    """Exception: a recorded hour is of a job. It outlives every process."""
    for name, braces in selectors(expr):
        if not name.startswith("hangup:"):
            assert 'instance=~"$instance"' in braces, name


@every_target
def test_target_counter_agg(expr: str) -> None:
    """A counter is only ever read through rate or increase, which are summed after."""
    for part in re.finditer(r"hangup_\w+_total\{", expr):
        before = expr[: part.start()]
        assert before.endswith(("(increase(", "(rate(")), before[-40:]
        outside = before.removesuffix("increase(").removesuffix("rate(")
        assert re.search(r"sum( by \([^)]*\))? \($", outside), outside[-60:]


@every_board
def test_uneditable_dashboard(board: Json) -> None:
    assert board["editable"] is False


@every_board
def test_g4_dashboard_will_not_load(board: Json) -> None:
    """No literal uid of a data source, no placeholder of an export, one known uid."""
    text = json.dumps(board)
    assert "${DS_" not in text
    assert "__inputs" not in board
    assert "id" not in board
    uids = re.findall(r'"datasource": \{"type": "(\w+)", "uid": "([^"]*)"\}', text)
    assert uids
    assert set(uids) == {("prometheus", "${datasource}")}
    assert re.fullmatch(r"[a-z-]{1,40}", board["uid"])
    assert board["schemaVersion"] == boards.SCHEMA_VERSION


def test_uids_and_titles_are_told_apart() -> None:
    assert set(BOARDS) == {ids.WASTE, ids.STOPPING, ids.BUDGETS}
    for board in BOARDS.values():
        numbers = Counter(panel["id"] for panel in board["panels"])
        assert max(numbers.values()) == 1
        titles = Counter(panel["title"] for panel in board["panels"])
        assert max(titles.values()) == 1


@every_board
def test_no_panel_overlaps_or_leaves_the_grid(board: Json) -> None:
    taken: dict[tuple[int, int], str] = {}
    for panel in board["panels"]:
        place = panel["gridPos"]
        assert place["w"] > 0
        assert place["h"] > 0
        for x in range(place["x"], place["x"] + place["w"]):
            assert 0 <= x < 24, panel["title"]
            for y in range(place["y"], place["y"] + place["h"]):
                assert (x, y) not in taken, (panel["title"], taken.get((x, y)))
                taken[x, y] = panel["title"]


def test_a_panel_wider_than_the_grid_is_refused() -> None:
    wide = panels.stat("wide", "Too wide.", unit="s", width=25)
    with pytest.raises(ValueError, match="wider than 24"):
        panels.lay_out((panels.Row("row", (wide,)),))


@every_panel
def test_thresholds_rise_from_a_base(panel: Json) -> None:
    steps = panel["fieldConfig"]["defaults"]["thresholds"]["steps"]
    assert steps[0]["value"] is None
    values = [step["value"] for step in steps[1:]]
    assert values == sorted(set(values))


@every_panel
def test_g3_nan_when_quiet_has_no_bare_division(panel: Json) -> None:
    """What is divided by is above 0, and a quantile of nothing is nothing."""
    for target in panel["targets"]:
        expr = target["expr"]
        for divisor in re.findall(r" / (?:on \(\) group_left \(\) )?(\S.*)", expr):
            constant = re.match(r"(24|1440|\(day_of_month)", divisor)
            assert constant or " > 0)" in divisor, expr
        if "histogram_quantile" in expr:
            assert expr.endswith(" >= 0"), expr


@every_board
def test_g6_exemplar_missing_is_not_promised(board: Json) -> None:
    """Runs are found by attribute: an unsampled one has no exemplar."""
    assert "exemplar" not in json.dumps(board)
    urls = [link["url"] for link in board["links"] if link["type"] == "link"]
    assert urls
    for url in urls:
        assert names.CAUSE in url
        assert "${traces}" in url


@every_board
def test_a_dashboard_leads_to_the_others_with_range_and_variables(board: Json) -> None:
    [link] = [one for one in board["links"] if one["type"] == "dashboards"]
    assert link["tags"] == board["tags"] == [ids.TAG]
    assert link["includeVars"]
    assert link["keepTime"]


@every_board
def test_mode_changes_are_marked(board: Json) -> None:
    [mark] = board["annotations"]["list"]
    assert series.INFO.name in mark["expr"]
    assert exposed(names.MODE) in mark["expr"]


def test_every_alert_of_a_metric_can_be_looked_at() -> None:
    """What an alert reads, some panel shows; but for what is still to come."""
    shown = {name for _, _, expr in TARGETS for name, _ in selectors(expr)}
    for alert in alerts.ALERTS:
        for name, _ in selectors(alert.expr):
            if name != series.BRAKE_TRIPPED.name:
                assert name in shown, (alert.name, name)
