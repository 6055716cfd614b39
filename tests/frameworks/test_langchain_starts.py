"""What is refused in LangChain's callbacks is not begun; what is cut has an end."""

from __future__ import annotations

from typing import Any

import pytest
from support.frameworkenv import told_by


@pytest.fixture(scope="module")
def agents() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = told_by("langchain_starts.py")
    return found


@pytest.mark.parametrize("agent", ["refused", "refused in a thread"])
def test_refused_tool_is_not_begun_and_counted_once(
    agents: dict[str, dict[str, Any]], agent: str
) -> None:
    """And no other callback is left with a start that has no end."""
    expected = {"begun": 0, "asked": 1, "ended": "stopped", "open": [], "refused": 1}
    assert agents[agent] == expected


@pytest.mark.parametrize("agent", ["shielded", "observed"])
def test_all_is_begun_where_nothing_is_refused(
    agents: dict[str, dict[str, Any]], agent: str
) -> None:
    expected = {"begun": 1, "asked": 2, "ended": "done", "open": [], "refused": 0}
    assert agents[agent] == expected


def test_irreversible_tool_is_begun_and_the_model_is_not_asked_again(
    agents: dict[str, dict[str, Any]],
) -> None:
    found = agents["irreversible"]
    assert (found["begun"], found["asked"], found["ended"]) == (1, 1, "stopped")


def test_model_call_that_is_cut_before_its_first_turn_has_an_end(
    agents: dict[str, dict[str, Any]],
) -> None:
    """Else it would be a call of the run that never ends."""
    assert agents["cut"] == {"ended": ["chat m"], "kept": 0}
