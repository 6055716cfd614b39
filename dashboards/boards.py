"""The frame of a dashboard: variables, annotations, links to others and to traces."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from dashboards import ids, queries, series
from dashboards.panels import SOURCE, Json, lay_out
from dashboards.promql import CAUSE_CHOSEN, CHOSEN
from dashboards.series import exposed
from hangup.otel import names

if TYPE_CHECKING:
    from dashboards.panels import Row
    from dashboards.series import Metric

SCHEMA_VERSION: Final = 42
"""Of the classic JSON; Grafana 10 to 13 read it."""


def _source(name: str, label: str, kind: str, *, hide: int = 0) -> Json:
    return {
        "type": "datasource",
        "name": name,
        "label": label,
        "query": kind,
        "hide": hide,
        "includeAll": False,
        "multi": False,
        "options": [],
        "refresh": 1,
        "regex": "",
    }


def _values(name: str, label: str, metric: Metric, of: str, within: str = "") -> Json:
    query = f"label_values({metric.name}{within}, {of})"
    return {
        "type": "query",
        "name": name,
        "label": label,
        "datasource": SOURCE,
        "query": {"query": query, "refId": name},
        "allValue": ".*",
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
        "hide": 0,
        "includeAll": True,
        "multi": True,
        "options": [],
        "refresh": 2,
        "regex": "",
        "skipUrlSync": False,
        "sort": 1,
    }


def variables() -> list[Json]:
    """Return the variables, the same on every dashboard."""
    job = '{job=~"$job"}'
    return [
        _source(ids.DATASOURCE, "Data source", "prometheus"),
        _values("job", "Job", series.INFO, "job"),
        _values("instance", "Instance", series.INFO, "instance", job),
        _values(
            *(CHOSEN[names.RUN_NAME], "Run name", series.RUNS),
            *(exposed(names.RUN_NAME), job),
        ),
        _values(
            *(CHOSEN[names.MODEL], "Model", series.METERED_TOKENS),
            *(exposed(names.MODEL), job),
        ),
        _values(CAUSE_CHOSEN, "Cause", series.RUNS, exposed(names.CAUSE), job),
        _source(ids.TRACES, "Traces", "tempo"),
    ]


def traces_url(query: str) -> str:
    """Return a link to the traces that a TraceQL query finds, in the range looked at.

    By attribute and not by exemplar: a run that was not sampled has none.
    """
    source = f"${{{ids.TRACES}}}"
    pane: dict[str, Any] = {
        "datasource": source,
        "queries": [
            {
                "refId": "A",
                "datasource": {"type": "tempo", "uid": source},
                "queryType": "traceql",
                "query": query,
            }
        ],
        "range": {"from": "${__from}", "to": "${__to}"},
    }
    panes = quote(json.dumps({"hangup": pane}, separators=(",", ":")), safe="${}_")
    return f"/explore?schemaVersion=1&panes={panes}"


ABANDONED_TRACES: Final = f'{{ span.{names.CAUSE} =~ ".+" }}'
"""Runs with a cause: those that were abandoned."""


def traces_of_row() -> Json:
    """Return a link of a table's row to the traces of its run name and cause."""
    name = "${__data.fields." + exposed(names.RUN_NAME) + "}"
    query = f'{{ span.{names.RUN_NAME} = "{name}" && span.{names.CAUSE} =~ ".+" }}'
    return {
        "title": "Traces of these runs",
        "url": traces_url(query),
        "targetBlank": True,
    }


def to(uid: str, title: str) -> Json:
    """Return a link to another dashboard that keeps variables and range."""
    url = f"/d/{uid}?${{__url_time_range}}&${{__all_variables}}"
    return {"title": title, "url": url, "targetBlank": False}


def links() -> list[Json]:
    """Return the links at the top: the other dashboards, and traces."""
    common: Json = {"icon": "external link", "keepTime": True, "asDropdown": False}
    return [
        {
            **common,
            "type": "dashboards",
            "title": "hangup",
            "tags": [ids.TAG],
            "includeVars": True,
            "targetBlank": False,
            "tooltip": "",
            "url": "",
        },
        {
            **common,
            "type": "link",
            "title": "Traces of abandoned runs",
            "tags": [],
            "includeVars": False,
            "targetBlank": True,
            "tooltip": "Needs a Tempo data source",
            "url": traces_url(ABANDONED_TRACES),
        },
    ]


def marks() -> Json:
    """Return what is marked on every curve: a job came up in a new mode."""
    return {
        "list": [
            {
                "name": "Mode changes",
                "datasource": SOURCE,
                "enable": True,
                "hide": False,
                "iconColor": "purple",
                "expr": queries.MODE_CHANGES,
                "step": "60s",
                "titleFormat": "{{job}} in mode {{" + exposed(names.MODE) + "}}",
                "textFormat": "",
                "useValueForTime": False,
            }
        ]
    }


def dashboard(
    uid: str, title: str, description: str, rows: tuple[Row, ...], start: str
) -> Json:
    """Return a whole dashboard; ``start`` is where its range begins."""
    return {
        "uid": uid,
        "title": title,
        "description": description,
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "tags": [ids.TAG],
        "editable": False,
        "graphTooltip": 1,
        "fiscalYearStartMonth": 0,
        "liveNow": False,
        "refresh": "1m",
        "time": {"from": start, "to": "now"},
        "timepicker": {},
        "timezone": "browser",
        "weekStart": "",
        "links": links(),
        "annotations": marks(),
        "templating": {"list": variables()},
        "panels": lay_out(rows),
    }
