"""What new input to a LangGraph thread does to the tool calls it was stopped in."""

from __future__ import annotations

from typing import Any

import pytest
from support.frameworkenv import told_by


@pytest.fixture(scope="module")
def threads() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = told_by("langgraph_threads.py")
    return found


@pytest.mark.parametrize(
    "thread",
    [
        "says_hello",
        "says_hello_in_one_word",
        "says_hello_twice",
        "says_hello_from_a_thread",
        "is_a_subgraph_with_a_memory",
    ],
)
def test_calls_are_answered_once_before_what_the_user_says(
    threads: dict[str, dict[str, Any]], thread: str
) -> None:
    assert threads[thread] == {"fault": "", "answered": 2, "begun": 2}


@pytest.mark.parametrize("thread", ["is_resumed", "is_commanded"])
def test_thread_that_is_resumed_does_its_tools_again(
    threads: dict[str, dict[str, Any]], thread: str
) -> None:
    assert threads[thread] == {"fault": "", "answered": 0, "begun": 4}


@pytest.mark.parametrize(
    "thread",
    ["answers_itself", "takes_it_back", "begins_anew", "brings_its_history"],
)
def test_input_that_sees_to_the_calls_itself_is_left_alone(
    threads: dict[str, dict[str, Any]], thread: str
) -> None:
    assert threads[thread] == {"fault": "", "answered": 0, "begun": 2}


@pytest.mark.parametrize("thread", ["is_only_observed", "is_without_hangup"])
def test_nothing_is_touched_where_hangup_does_not_act(
    threads: dict[str, dict[str, Any]], thread: str
) -> None:
    """It is LangGraph that leaves it so: when this fails, the adapter may go."""
    assert "call_0" in threads[thread]["fault"]
