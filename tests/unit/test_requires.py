"""A tool that is missing skips a test here, and fails it in CI."""

from __future__ import annotations

import pytest
from support.requires import require


def test_a_tool_that_is_there_lets_the_test_go_on() -> None:
    require("sh")
    require("luck", present=True)


@pytest.mark.parametrize(
    ("ci", "outcome"),
    [
        ("", pytest.skip.Exception),
        ("false", pytest.skip.Exception),
        ("true", pytest.fail.Exception),
        ("1", pytest.fail.Exception),
    ],
)
def test_a_missing_tool_skips_and_in_ci_fails(
    monkeypatch: pytest.MonkeyPatch, ci: str, outcome: type[BaseException]
) -> None:
    monkeypatch.setenv("CI", ci)
    with pytest.raises(outcome, match="no-such-tool"):
        require("no-such-tool")
    with pytest.raises(outcome, match="right to do it"):
        require("right to do it", present=False)
