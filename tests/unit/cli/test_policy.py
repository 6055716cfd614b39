"""``hangup policy check``: right or wrong, and what a run would get."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from hangup.cli.app import app

if TYPE_CHECKING:
    from pathlib import Path

TEXT = """\
rules:
  - route: /chat/*
    tenant: acme
    mode: enforce
    share: 5
    budget: 30
  - name: research
    budget: none
default:
  mode: observe
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "policy.yaml"
    path.write_text(TEXT)
    return path


def check(path: Path, *options: str) -> tuple[int, str, str]:
    result = CliRunner(env={"COLUMNS": "200"}).invoke(
        app, ["policy", "check", str(path), *options]
    )
    return result.exit_code, result.stdout, result.stderr


def test_a_right_file_is_shown_rule_by_rule(path: Path) -> None:
    code, said, _ = check(path)
    assert code == 0
    assert "2 rules, and a default" in said
    assert "route /chat/*, tenant acme" in said
    assert "enforce, 5 % of the runs (the others observe), budget 30 s" in said
    assert "everything else" in said
    assert ">" not in said


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--route", "/chat/1", "--tenant", "acme"], "rule 1 (line 2): enforce, 5 %"),
        (["--route", "/chat/1"], "the default (line 9): observe"),
        (["--name", "research"], "rule 2 (line 7): budget none"),
    ],
)
def test_it_says_which_rule_a_run_would_get(
    path: Path, options: list[str], says: str
) -> None:
    code, said, _ = check(path, *options)
    assert code == 0
    assert f"The run gets {says}" in said


def test_it_says_so_where_no_rule_matches(path: Path) -> None:
    path.write_text("rules:\n- name: x\n  mode: off\n")
    code, said, _ = check(path, "--name", "y")
    assert (code, "No rule matches" in said, "no default" in said) == (0, True, True)


def test_a_wrong_file_is_status_2_with_its_line(path: Path) -> None:
    path.write_text(TEXT.replace("budget: 30", "budgt: 30"))
    code, said, error = check(path)
    assert (code, said) == (2, "")
    assert (
        "policy.yaml, line 6: budgt=30 cannot be used: no such key of rule 1" in error
    )
    assert check(path.parent / "absent")[0] == 2


def test_json_is_for_programs(path: Path) -> None:
    code, said, _ = check(path, "--json", "--name", "research")
    found: dict[str, Any] = json.loads(said)
    assert code == 0
    assert found["ok"] is True
    assert len(found["policy"]) == 12
    assert found["match"] == {
        "rule": 2,
        "line": 7,
        "name": ["research"],
        "budget": "none",
    }
    assert found["default"] == {"rule": "default", "line": 9, "mode": "observe"}
    assert found["rules"][0]["share"] == 5.0
    path.write_text("a: 1")
    code, said, _ = check(path, "--json")
    assert code == 2
    assert json.loads(said)["ok"] is False
    assert "no such key" in json.loads(said)["error"]
