"""Uids and names that links rely on. They never change: a new uid is a dead link."""

from __future__ import annotations

from typing import Final

WASTE: Final = "hangup-waste"
STOPPING: Final = "hangup-stopping"
BUDGETS: Final = "hangup-budgets"

TAG: Final = "hangup"
FOLDER: Final = "hangup"
"""Of provisioned alerts."""
ALERT_GROUP: Final = "hangup-alerts"
RECORD_GROUP: Final = "hangup-hours"

DATASOURCE: Final = "datasource"
TRACES: Final = "traces"
"""Variables that hold the data sources."""

PROVISIONED_SOURCE: Final = "$HANGUP_PROMETHEUS_UID"
"""Grafana puts its environment into provisioning files; a variable cannot be there."""


def alert_uid(name: str) -> str:
    """``HangupSlowStop`` is ``hangup-slow-stop``; Grafana takes 40 characters."""
    dashed = "".join(f"-{char.lower()}" if char.isupper() else char for char in name)
    uid = dashed.lstrip("-")
    most = 40
    if len(uid) > most:
        raise ValueError(f"the alert name {name} makes a uid longer than {most}: {uid}")
    return uid


def anchor(name: str) -> str:
    """Return the fragment of the alert's section in the runbook."""
    return name.lower()
