"""The panels of the dashboards, and what a Grafana would make of them."""

from __future__ import annotations

import re
from typing import Any, Final

from dashboards import files

WITH_A_BUS: Final = {"Bus health"}
"""Panels that are empty without a bus."""

PANELS: Final = [
    (f"{board['uid']}: {panel['title']}", panel)
    for board in files.BOARDS.values()
    for panel in board["panels"]
    if panel["type"] != "row"
]


def filled(
    expr: str, over: str = "5m", *, interval: str = "1m", job: str = ".*"
) -> str:
    """Return a panel's query as Grafana sends it.

    Args:
        expr: As it stands in the dashboard.
        over: The range that is looked at.
        interval: Four scrapes.
        job: What is chosen; of everything else, all of it.
    """
    expr = expr.replace("$__range", over).replace("$__rate_interval", interval)
    return re.sub(r'"\$\w+"', '".*"', expr.replace("$job", job))


def red(panel: dict[str, Any], value: float) -> bool:
    """Whether a panel shows a value in red."""
    steps = panel["fieldConfig"]["defaults"]["thresholds"]["steps"]
    colour = [
        one["color"] for one in steps if one["value"] is None or value >= one["value"]
    ]
    return bool(colour[-1] == "red")


def of_the_month(title: str) -> str:
    """Return the query of a panel of the first row of *Wasted spend*."""
    [found] = [
        panel
        for _, panel in PANELS
        if panel["title"] == title and panel.get("timeFrom") == "now/M"
    ]
    [target] = found["targets"]
    return str(target["expr"])
