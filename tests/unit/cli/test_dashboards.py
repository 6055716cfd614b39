"""``hangup dashboards export``: what is committed is what is written."""

from __future__ import annotations

from pathlib import Path

import pytest
from dashboards.settings import RUNBOOK_URL
from typer.testing import CliRunner

from hangup.cli.app import app

GENERATED = Path(__file__).parents[3] / "dashboards" / "generated"
FORMATS = ("grafana", "provisioning", "kubernetes", "prometheus")


def export(*arguments: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["dashboards", "export", *map(str, arguments)])
    return result.exit_code, result.stdout, result.stderr


def contents(top: Path) -> dict[str, str]:
    return {
        str(path.relative_to(top)): path.read_text()
        for path in top.rglob("*")
        if path.is_file()
    }


def test_every_format_has_a_folder_and_the_runbook_lies_beside(tmp_path: Path) -> None:
    status, said, hint = export(tmp_path / "new" / "folder")
    written = contents(tmp_path / "new" / "folder")
    assert status == 0
    assert f"wrote {len(written)} files" in said
    runbook = written.pop("RUNBOOK.md")
    assert runbook == (GENERATED.parent / "RUNBOOK.md").read_text()
    committed = contents(GENERATED)
    assert written == {
        name: text for name, text in committed.items() if name.startswith(FORMATS)
    }
    assert "--runbook-url" in hint


@pytest.mark.parametrize("form", FORMATS)
def test_one_format_lies_right_in_the_folder(tmp_path: Path, form: str) -> None:
    export(tmp_path, "--format", form)
    written = contents(tmp_path)
    assert written.keys() - {"RUNBOOK.md"} == contents(GENERATED / form).keys()


def test_alerts_link_to_the_runbook_of_who_exports(tmp_path: Path) -> None:
    _, _, hint = export(tmp_path, "--runbook-url", "https://wiki.example.com/hangup")
    rules = (tmp_path / "prometheus" / "hangup.rules.yaml").read_text()
    assert "https://wiki.example.com/hangup#hangupwasterate" in rules
    assert not [
        name for name, text in contents(tmp_path).items() if RUNBOOK_URL in text
    ]
    assert hint == ""


def test_an_earlier_export_is_replaced_and_other_files_stay(tmp_path: Path) -> None:
    (tmp_path / "mine.json").write_text("{}")
    export(tmp_path, "--format", "grafana")
    (tmp_path / "budgets.json").write_text("old")
    export(tmp_path, "--format", "grafana")
    written = contents(tmp_path)
    assert written["mine.json"] == "{}"
    assert written["budgets.json"] == (GENERATED / "grafana/budgets.json").read_text()


def test_a_folder_that_cannot_be_written_is_said_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    status, _, said = export(tmp_path / "file" / "below")
    assert status == 2
    assert "Give a folder that can be written" in said


def test_an_unknown_format_is_answered_with_those_there_are(tmp_path: Path) -> None:
    status, _, said = export(tmp_path, "--format", "excel")
    assert status == 2
    assert "provisioning" in said
