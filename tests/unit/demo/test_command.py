"""The command's options, before anything is started."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from support.demo import a_demo, a_pass, a_visit
from typer.testing import CliRunner

from hangup.cli import demo as command
from hangup.cli.app import app
from hangup.demo import harness
from hangup.demo.workload import Setting

if TYPE_CHECKING:
    from hangup.demo.results import Demo

_OPTIONS = [
    *("--provider", "anthropic"),
    *("--provider-on-close", "finish"),
    *("--first-token", "1.5"),
]


def test_every_option_reaches_the_model_and_is_named_in_the_json(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []

    async def run_demo(
        users: int, seed: int, setting: Setting, on_progress: object
    ) -> Demo:
        asked.append((users, seed, setting))
        visits = [a_visit(answer="yes")]
        done = a_demo(a_pass("observe", visits), a_pass("enforce", visits))
        return replace(done, setting=setting)

    monkeypatch.setattr(harness, "run_demo", run_demo)
    options = ["--users", "3", "--seed", "9", "--json", *_OPTIONS]
    result = CliRunner().invoke(app, ["demo", *options])
    assert asked == [(3, 9, Setting("anthropic", "finish", 1.5))]
    for part in (
        '"provider": "anthropic"',
        '"provider_on_close": "finish"',
        '"first_token_seconds": 1.5',
    ):
        assert part in result.stdout


def test_without_anthropics_client_the_remedy_is_named_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(command, "find_spec", lambda name: name != "anthropic" or None)
    monkeypatch.setattr(command, "_run", lambda *_: pytest.fail("it was started"))
    result = CliRunner().invoke(app, ["demo", "--provider", "anthropic"])
    assert result.exit_code == 2
    assert "needs anthropic" in result.stderr
    assert "pip install 'hangup[demo]'" in result.stderr


@pytest.mark.parametrize(
    "option",
    [["--provider", "nobody"], ["--first-token", "-1"], ["--first-token", "9"]],
)
def test_an_option_that_cannot_be_meant_is_refused(option: list[str]) -> None:
    assert CliRunner().invoke(app, ["demo", *option]).exit_code == 2
