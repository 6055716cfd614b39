"""The model of these tests refuses the histories that the real ones refuse."""

from __future__ import annotations

from typing import Any

import pytest
from support.providers.history import fault

Messages = list[dict[str, Any]]


def _user(text: str = "hello") -> dict[str, Any]:
    return {"role": "user", "content": text}


def _chat(*answered: str) -> Messages:
    """OpenAI's chat: two calls, of which some are answered."""
    calls = [{"id": "a"}, {"id": "b"}]
    answers = [{"role": "tool", "tool_call_id": one} for one in answered]
    asks = {"role": "assistant", "content": None, "tool_calls": calls}
    return [_user("go"), asks, *answers, _user()]


def _messages(*answered: str) -> Messages:
    """Anthropic's messages, the same."""
    calls = [{"type": "tool_use", "id": one} for one in "ab"]
    answers = [{"type": "tool_result", "tool_use_id": one} for one in answered]
    said = [*answers, {"type": "text", "text": "hello"}]
    asks = {"role": "assistant", "content": calls}
    return [_user("go"), asks, {"role": "user", "content": said}]


def _items(*answered: str) -> Messages:
    """OpenAI's Responses, the same."""
    calls = [{"type": "function_call", "call_id": one} for one in "ab"]
    outputs = [{"type": "function_call_output", "call_id": one} for one in answered]
    return [_user("go"), *calls, *outputs, _user()]


def _asked(dialect: str, *answered: str) -> dict[str, Any]:
    if dialect == "responses":
        return {"input": _items(*answered)}
    return {"messages": {"chat": _chat, "messages": _messages}[dialect](*answered)}


_dialects = pytest.mark.parametrize("dialect", ["chat", "messages", "responses"])


@_dialects
def test_history_with_all_calls_answered_is_taken(dialect: str) -> None:
    assert fault(_asked(dialect, "a", "b")) == ""


@_dialects
@pytest.mark.parametrize("answered", [(), ("a",), ("b",)])
def test_history_with_an_unanswered_call_is_refused(
    dialect: str, answered: tuple[str, ...]
) -> None:
    missing = min({"a", "b"} - set(answered))
    assert f"'{missing}'" in fault(_asked(dialect, *answered))


@_dialects
def test_history_with_an_answer_to_no_call_is_refused(dialect: str) -> None:
    assert "'c'" in fault(_asked(dialect, "a", "b", "c"))


def test_history_that_ends_in_calls_is_refused() -> None:
    assert "'a', 'b'" in fault({"messages": _chat()[:2]})


def test_history_with_answers_after_something_else_is_refused() -> None:
    go, asks, *answers, hello = _chat("a", "b")
    assert fault({"messages": [go, asks, hello, *answers]})
