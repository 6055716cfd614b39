"""The dashboards are what Grafana's own types say a dashboard is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from dashboards import files
from jsonschema import Draft7Validator

SCHEMA = json.loads((Path(__file__).parent / "schema" / "dashboard.json").read_text())

# The types leave out what a data source's plugin adds to an annotation of its own.
PROMETHEUS_ANNOTATION = {"expr", "step", "textFormat", "titleFormat", "useValueForTime"}


def bare(board: dict[str, Any]) -> dict[str, Any]:
    """The dashboard without what the types are known not to tell of."""
    copy: dict[str, Any] = json.loads(json.dumps(board))
    for annotation in copy["annotations"]["list"]:
        for key in PROMETHEUS_ANNOTATION:
            annotation.pop(key, None)
    return copy


def faults(board: dict[str, Any]) -> list[str]:
    errors = Draft7Validator(SCHEMA).iter_errors(board)
    return [f"{'/'.join(map(str, one.path))}: {one.message[:200]}" for one in errors]


@pytest.mark.parametrize("name", files.BOARDS)
def test_a_dashboard_is_one_by_grafanas_own_types(name: str) -> None:
    assert faults(bare(files.BOARDS[name])) == []


def test_the_schema_can_say_no() -> None:
    board = bare(files.BOARDS["stopping"])
    board["panels"][0]["gridPos"]["w"] = "wide"
    board["refrsh"] = "30s"
    assert len(faults(board)) >= 2


def test_the_exception_is_still_one() -> None:
    """Where the types learn of these, they are to be checked again."""
    [fault] = faults(
        bare(files.BOARDS["stopping"])
        | {"annotations": files.BOARDS["stopping"]["annotations"]}
    )
    assert fault.startswith("annotations/list/")
