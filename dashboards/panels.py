"""Grafana's classic JSON for the few kinds of panel, and the grid they stand on."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Final

from dashboards import ids
from dashboards.series import exposed
from hangup.otel import names

Json = dict[str, Any]

COLUMNS: Final = 24
SOURCE: Final[Json] = {"type": "prometheus", "uid": f"${{{ids.DATASOURCE}}}"}

USD: Final = "currencyUSD"
SHARE: Final = "percentunit"
SECONDS: Final = "s"
COUNT: Final = "short"
WHOLE: Final = "locale"
"""Counts that are no curve: growth has fractions, and nobody lost 25.04 answers."""

_HEADINGS: Final = {
    "job": "Job",
    exposed(names.RUN_NAME): "Run name",
    exposed(names.MODEL): "Model",
    exposed(names.CAUSE): "Cause",
    exposed(names.VERSION): "Version",
    exposed(names.MODE): "Mode",
    exposed(names.POLICY): "Policy",
}
"""What a label is called above its column, in the order of the columns."""

THIS_MONTH: Final = "now/M"

# Colours of what threatens nobody: numbers without a good or a bad end.
_PLAIN: Final = ((None, "blue"),)

Steps = tuple[tuple[float | None, str], ...]


def rising(warn: float, bad: float) -> Steps:
    """Return thresholds of what had better be low."""
    return ((None, "green"), (warn, "orange"), (bad, "red"))


def falling(bad: float, warn: float) -> Steps:
    """Return thresholds of what had better be high."""
    return ((None, "red"), (bad, "orange"), (warn, "green"))


@dataclass(frozen=True, slots=True)
class Target:
    """One query of a panel.

    Attributes:
        expr: PromQL.
        legend: Grafana's legend format.
        name: What the column is called, in a table.
        unit: Of that column.
    """

    expr: str
    legend: str = ""
    name: str = ""
    unit: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel, not yet on the grid.

    Attributes:
        kind: Grafana's panel type.
        title: What it shows.
        description: What that means, and what to make of it.
        targets: What it asks.
        unit: Of every value.
        width: In columns.
        height: In rows of the grid.
        steps: Thresholds, by value.
        options: Grafana's options of that kind.
        custom: Grafana's field options of that kind.
        instant: Asks for one moment and not for a curve.
        form: ``time_series``, ``table`` or ``heatmap``.
        time_from: A range of its own, such as this month.
        empty: What stands there while there is nothing.
        links: Of each value.
        changes: What is done to the frames.
        overrides: Field options by name.
    """

    kind: str
    title: str
    description: str
    targets: tuple[Target, ...]
    unit: str
    width: int
    height: int
    steps: Steps = _PLAIN
    options: Json = field(default_factory=dict)
    custom: Json = field(default_factory=dict)
    instant: bool = False
    form: str = "time_series"
    time_from: str | None = None
    empty: str = "no runs"
    links: tuple[Json, ...] = ()
    changes: tuple[Json, ...] = ()
    overrides: tuple[Json, ...] = ()

    def this_month(self) -> Panel:
        """Return it over this month, whatever the user looks at."""
        return replace(self, time_from=THIS_MONTH)

    def json(self, number: int, x: int, y: int) -> Json:
        """Return what Grafana reads."""
        defaults: Json = {
            **(
                {"unit": self.unit} if self.overrides else _number(self.unit, self.kind)
            ),
            "noValue": self.empty,
            "color": {"mode": "thresholds" if self.steps != _PLAIN else "fixed"},
            "thresholds": {
                "mode": "absolute",
                "steps": [{"value": at, "color": colour} for at, colour in self.steps],
            },
            "links": list(self.links),
            "mappings": [],
            "custom": self.custom,
        }
        if self.steps == _PLAIN:
            defaults["color"]["fixedColor"] = "blue"
        named = len(self.targets) > 1 or any("{{" in one.legend for one in self.targets)
        # Bars are told apart by their names: a red one would look like a fault.
        if named and self.kind != "bargauge":
            defaults["color"] = {"mode": "palette-classic"}
        if self.kind in ("timeseries", "bargauge"):
            # Else the smallest bar of all is an empty one.
            defaults["min"] = 0
        if self.kind == "bargauge" and self.unit == SHARE:
            defaults["max"] = 1
        made: Json = {
            "id": number,
            "type": self.kind,
            "title": self.title,
            "description": self.description,
            "datasource": SOURCE,
            "gridPos": {"x": x, "y": y, "w": self.width, "h": self.height},
            "targets": [
                self._target(target, chr(ord("A") + index))
                for index, target in enumerate(self.targets)
            ],
            "fieldConfig": {"defaults": defaults, "overrides": list(self.overrides)},
            "options": self.options,
            "transformations": list(self.changes),
        }
        if self.time_from:
            made |= {"timeFrom": self.time_from, "hideTimeOverride": False}
        return made

    def _target(self, target: Target, ref: str) -> Json:
        return {
            "refId": ref,
            "datasource": SOURCE,
            "expr": target.expr,
            "legendFormat": target.legend or "__auto",
            "editorMode": "code",
            "format": self.form,
            "instant": self.instant,
            "range": not self.instant,
        }


_LINE: Final = 4
"""Rows of the grid that one number needs."""
_LAST: Final[Json] = {"calcs": ["lastNotNull"], "fields": "", "values": False}


def stat(  # noqa: PLR0913
    title: str,
    description: str,
    *targets: Target,
    unit: str,
    width: int = 4,
    height: int = _LINE,
    steps: Steps = _PLAIN,
    empty: str = "no runs",
) -> Panel:
    """Return big numbers, one for each series."""
    options = {
        "reduceOptions": _LAST,
        "colorMode": "value",
        "graphMode": "none",
        "textMode": "auto",
        "justifyMode": "auto",
        "orientation": "auto",
    }
    if height > _LINE:
        options["text"] = {"valueSize": 48}
    return Panel(
        *("stat", title, description, targets, unit, width, height, steps, options),
        instant=True,
        empty=empty,
    )


def curve(  # noqa: PLR0913
    title: str,
    description: str,
    *targets: Target,
    unit: str,
    width: int = 12,
    steps: Steps = _PLAIN,
    stack: bool = False,
) -> Panel:
    """Return curves over time; a line where a threshold is."""
    custom: Json = {
        "drawStyle": "line",
        "lineWidth": 1,
        "fillOpacity": 30 if stack else 10,
        "showPoints": "auto",
        "spanNulls": False,
        "stacking": {"mode": "normal" if stack else "none", "group": "A"},
        "thresholdsStyle": {"mode": "line" if steps != _PLAIN else "off"},
    }
    options = {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
    return Panel(
        *("timeseries", title, description, targets, unit, width, 8, steps),
        options=options,
        custom=custom,
    )


def bars(
    title: str,
    description: str,
    *targets: Target,
    unit: str,
    width: int = 6,
    aside: bool = False,
) -> Panel:
    """Return one bar for each series, its name above it, or aside where it is short."""
    options = {
        "reduceOptions": _LAST,
        "displayMode": "basic",
        "orientation": "horizontal",
        "showUnfilled": True,
        "valueMode": "color",
        "sizing": "manual",
        "minVizWidth": 8,
        "minVizHeight": 16 if aside else 32,
        "maxVizHeight": 44,
        "namePlacement": "left" if aside else "top",
        "text": {"titleSize": 13, "valueSize": 16},
    }
    return Panel(
        *("bargauge", title, description, targets, unit, width, 8),
        options=options,
        instant=True,
    )


def heatmap(title: str, description: str, target: Target, *, width: int = 12) -> Panel:
    """Return the buckets of a histogram over time."""
    options: Json = {
        "calculate": False,
        "cellGap": 1,
        "color": {"mode": "scheme", "scheme": "Oranges", "steps": 64, "exponent": 0.5},
        "filterValues": {"le": 1e-9},
        "legend": {"show": True},
        "rowsFrame": {"layout": "auto"},
        "tooltip": {"mode": "single", "yHistogram": False},
        "yAxis": {"unit": SECONDS, "axisPlacement": "left"},
    }
    return Panel(
        *("heatmap", title, description, (target,), SECONDS, width, 8),
        options=options,
        form="heatmap",
    )


def table(  # noqa: PLR0913
    title: str,
    description: str,
    *targets: Target,
    unit: str,
    width: int = 24,
    drop: tuple[str, ...] = (),
    links: tuple[Json, ...] = (),
) -> Panel:
    """Return a row for each label set, a column for each target that has a name."""
    columns = {
        f"Value #{chr(ord('A') + index)}" if len(targets) > 1 else "Value": target
        for index, target in enumerate(targets)
    }
    changes: tuple[Json, ...] = (
        {"id": "merge", "options": {}},
        {
            "id": "organize",
            "options": {
                "excludeByName": dict.fromkeys(("Time", *drop), True),
                "indexByName": {label: at for at, label in enumerate(_HEADINGS)},
                "renameByName": {key: target.name for key, target in columns.items()},
            },
        },
    )
    # Under its own name a label is found by links; so it is only shown by another.
    overrides = (
        *(
            _override(label, {"displayName": heading})
            for label, heading in _HEADINGS.items()
        ),
        _override(exposed(names.RUN_NAME), {"custom.width": 210}),
        *(
            _override(
                target.name, _number(target.unit or unit, "table") | {"noValue": "-"}
            )
            for target in targets
        ),
    )
    return Panel(
        *("table", title, description, targets, unit, width, 8),
        options={
            "cellHeight": "sm",
            "showHeader": True,
            "sortBy": [{"displayName": targets[0].name, "desc": True}],
        },
        custom={"align": "auto", "filterable": True, "minWidth": 90},
        instant=True,
        form="table",
        links=links,
        changes=changes,
        overrides=overrides,
    )


def _override(of: str, options: Json) -> Json:
    properties = [{"id": key, "value": value} for key, value in options.items()]
    return {"matcher": {"id": "byName", "options": of}, "properties": properties}


def _number(unit: str, kind: str) -> Json:
    """Return how a number is written in a kind of panel."""
    if unit == COUNT and kind not in ("timeseries", "heatmap"):
        return {"unit": WHOLE, "decimals": 0}
    if unit == USD and kind == "stat":
        return {"unit": unit, "decimals": 2}
    return {"unit": unit}


@dataclass(frozen=True, slots=True)
class Row:
    """A titled row of panels; they flow into lines of 24 columns."""

    title: str
    panels: tuple[Panel, ...]


def lay_out(rows: tuple[Row, ...]) -> list[Json]:
    """Return every panel with its place and its id."""
    made: list[Json] = []
    y = 0
    for row in rows:
        made.append(
            {
                "id": len(made) + 1,
                "type": "row",
                "title": row.title,
                "collapsed": False,
                "gridPos": {"x": 0, "y": y, "w": COLUMNS, "h": 1},
                "panels": [],
            }
        )
        x, y, tallest = 0, y + 1, 0
        for panel in row.panels:
            if panel.width > COLUMNS:
                raise ValueError(f"{panel.title!r} is wider than {COLUMNS} columns")
            if x + panel.width > COLUMNS:
                x, y, tallest = 0, y + tallest, 0
            made.append(panel.json(len(made) + 1, x, y))
            x, tallest = x + panel.width, max(tallest, panel.height)
        y += tallest
    return made
