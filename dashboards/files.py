"""The forms in which dashboards, rules and alerts are written."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from dashboards import budgets, ids, rules, stopping, waste
from dashboards.alerts import ALERTS
from dashboards.unittests import promtool_tests
from dashboards.yamltext import to_yaml

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dashboards.alerts import Alert
    from dashboards.panels import Json

HEAD: Final = "# Written by `python -m dashboards`. Change dashboards/*.py instead.\n"

BOARDS: Final = {
    "wasted-spend": waste.BOARD,
    "stopping": stopping.BOARD,
    "budgets": budgets.BOARD,
}


def _record_group() -> Json:
    return {
        "name": ids.RECORD_GROUP,
        "interval": rules.INTERVAL,
        "rules": [{"record": one.name, "expr": one.expr} for one in rules.RECORDS],
    }


def _annotations(alert: Alert) -> Json:
    return {
        "summary": alert.summary,
        "description": "The value is {{ .Value | humanize }}.",
        "runbook_url": alert.runbook_url,
        "dashboard": f"/d/{alert.board}",
    }


def _alert_rule(alert: Alert) -> Json:
    rule: Json = {"alert": alert.name, "expr": alert.expr}
    if alert.hold:
        rule["for"] = alert.hold
    rule["labels"] = {"severity": alert.severity}
    rule["annotations"] = _annotations(alert)
    return rule


def _alert_group() -> Json:
    return {
        "name": ids.ALERT_GROUP,
        "interval": "1m",
        "rules": [_alert_rule(alert) for alert in ALERTS],
    }


def prometheus_rules() -> Json:
    """Return a rule file of Prometheus."""
    return {"groups": [_record_group(), _alert_group()]}


def provisioned_alerts() -> Json:
    """Return the alerts as Grafana provisions them from a file.

    No ``$`` may stand in there but that of the data source: Grafana puts environment
    variables in its place.
    """
    return {
        "apiVersion": 1,
        "groups": [
            {
                "orgId": 1,
                "name": ids.ALERT_GROUP,
                "folder": ids.FOLDER,
                "interval": "1m",
                "rules": [_provisioned(alert) for alert in ALERTS],
            }
        ],
    }


def _provisioned(alert: Alert) -> Json:
    window = {"from": 600, "to": 0}
    query: Json = {
        "refId": "A",
        "relativeTimeRange": window,
        "datasourceUid": ids.PROVISIONED_SOURCE,
        "model": {
            "refId": "A",
            "expr": alert.expr,
            "instant": True,
            "range": False,
            "editorMode": "code",
        },
    }
    above: Json = {
        "refId": "B",
        "relativeTimeRange": window,
        "datasourceUid": "__expr__",
        "model": {
            "refId": "B",
            "type": "threshold",
            "expression": "A",
            "conditions": [{"evaluator": {"type": "gt", "params": [0]}}],
        },
    }
    annotations = _annotations(alert)
    annotations["description"] = (
        'The value is {{ humanize (index .Values "A").Value }}.'
    )
    return {
        "uid": ids.alert_uid(alert.name),
        "title": alert.name,
        "condition": "B",
        "data": [query, above],
        "for": alert.hold or "0s",
        # The expression is empty when all is well.
        "noDataState": "OK",
        "execErrState": "Error",
        "labels": {"severity": alert.severity},
        "annotations": annotations,
    }


def _kubernetes(kind: str, version: str, name: str, labels: Json) -> Json:
    return {
        "apiVersion": version,
        "kind": kind,
        "metadata": {
            "name": name,
            "labels": {"app.kubernetes.io/part-of": "hangup"} | labels,
        },
    }


def prometheus_rule() -> Json:
    """Return the rule file as a resource of the Prometheus operator."""
    made = _kubernetes("PrometheusRule", "monitoring.coreos.com/v1", "hangup", {})
    return made | {"spec": prometheus_rules()}


def config_map(name: str, board: Json) -> Json:
    """Return a dashboard as a ConfigMap that Grafana's sidecar picks up."""
    labels = {"grafana_dashboard": "1"}
    made = _kubernetes("ConfigMap", "v1", f"hangup-{name}", labels)
    return made | {"data": {f"{board['uid']}.json": to_json(board)}}


def to_json(board: Json) -> str:
    """Return a dashboard as a file."""
    return json.dumps(board, indent=2, ensure_ascii=False) + "\n"


def generated() -> Iterator[tuple[str, str]]:
    """Yield every file: its path under ``dashboards/generated``, and its text."""
    for name, board in BOARDS.items():
        yield f"grafana/{name}.json", to_json(board)
        yield f"kubernetes/{name}.yaml", HEAD + to_yaml(config_map(name, board))
    yield "prometheus/hangup.rules.yaml", HEAD + to_yaml(prometheus_rules())
    yield "provisioning/alerts.yaml", HEAD + to_yaml(provisioned_alerts())
    yield "kubernetes/rules.yaml", HEAD + to_yaml(prometheus_rule())
    for name, tests in promtool_tests():
        yield f"tests/{name}.yaml", HEAD + to_yaml(tests)
