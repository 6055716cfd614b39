from __future__ import annotations

import importlib.util
import sys
from importlib.metadata import version
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from hangup import cli
from hangup.cli.app import app

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec


def _without(monkeypatch: pytest.MonkeyPatch, absent: str) -> None:
    """Make the command line believe that a module is not installed."""
    found = importlib.util.find_spec

    def find_spec(name: str) -> ModuleSpec | None:
        return None if name == absent else found(name)

    monkeypatch.setattr(cli, "find_spec", find_spec)


def test_version_is_the_distributions() -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert (result.exit_code, result.output.strip()) == (0, version("hangup"))


def test_without_typer_the_remedy_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _without(monkeypatch, "typer")
    with pytest.raises(SystemExit) as left:
        cli.main()
    assert left.value.code == 2
    said = capsys.readouterr().err
    assert "needs typer" in said
    assert "pip install 'hangup[demo]'" in said


@pytest.mark.parametrize("absent", ["openai", "opentelemetry.instrumentation.httpx"])
def test_the_demo_names_the_remedy_before_it_starts_anything(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    absent: str,
) -> None:
    _without(monkeypatch, absent)
    monkeypatch.setattr(sys, "argv", ["hangup", "demo"])
    with pytest.raises(SystemExit) as left:
        cli.main()
    assert left.value.code == 2
    said = capsys.readouterr()
    assert f"needs {absent}" in said.err
    assert "pip install 'hangup[demo]'" in said.err
    assert said.out == ""


def test_nothing_is_absent_where_the_extra_is_installed() -> None:
    assert cli.first_absent() is None


@pytest.mark.parametrize("option", [["--users", "0"], ["--provider-on-close", "maybe"]])
def test_an_option_that_cannot_be_meant_is_refused(option: list[str]) -> None:
    result = CliRunner().invoke(app, ["demo", *option])
    assert result.exit_code == 2
