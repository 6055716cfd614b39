"""What is refused in the trace processors of the OpenAI Agents SDK is not begun."""

from __future__ import annotations

from typing import Any

import pytest
from support.frameworkenv import told_by

TOOLS = ["act", "act_too"]
SPANS = [f"execute_tool {tool}" for tool in TOOLS]


@pytest.fixture(scope="module")
def agents() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = told_by("agents_starts.py")
    return found


def test_refused_tools_are_not_begun_and_counted_once(
    agents: dict[str, dict[str, Any]],
) -> None:
    """Their spans are exported, the model is not asked again, and the run says why."""
    assert agents["refused"] == {
        "begun": [],
        "asked": 1,
        "ended": "stopped",
        "refused": 2,
        "tools": SPANS,
        "current": False,
        "logged": [],
    }


def test_stopped_run_begins_none_either(agents: dict[str, dict[str, Any]]) -> None:
    found = agents["stopped"]
    assert (found["begun"], found["asked"], found["ended"]) == ([], 1, "stopped")


@pytest.mark.parametrize("agent", ["shielded", "observed", "uninstrumented"])
def test_all_is_begun_where_nothing_is_refused(
    agents: dict[str, dict[str, Any]], agent: str
) -> None:
    assert agents[agent] == {
        "begun": TOOLS,
        "asked": 2,
        "ended": "done",
        "refused": 0,
        "tools": SPANS,
        "current": False,
        "logged": [],
    }


def test_irreversible_tool_is_begun(agents: dict[str, dict[str, Any]]) -> None:
    found = agents["irreversible"]
    assert (found["begun"], found["refused"]) == (["act"], 0)
