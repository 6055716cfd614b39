"""What the real providers say of a conversation: nothing, or why it is refused.

A model's tool calls must all be answered before anything else is said, and only what
was called may be answered. OpenAI and Anthropic reply with 400 to everything else, and
so does every later turn of a conversation that keeps it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


def fault(asked: Mapping[str, Any]) -> str:
    """Return why a request is refused, empty if it is not."""
    if "input" in asked:
        return _of_items(asked["input"])
    waiting: set[str] = set()
    for calls, answers, speaks in _turns(asked["messages"]):
        if answers - waiting:
            return f"{sorted(answers - waiting)} answer no tool call before them"
        waiting -= answers
        if waiting and speaks:
            return f"tool calls without an answer: {sorted(waiting)}"
        waiting |= calls
    return f"tool calls without an answer: {sorted(waiting)}" if waiting else ""


def _turns(
    messages: list[Mapping[str, Any]],
) -> Iterator[tuple[set[str], set[str], bool]]:
    """Yield of every message what it calls, answers, and whether it says more."""
    for message in messages:
        calls = {call["id"] for call in message.get("tool_calls") or ()}
        answers = set()
        if message["role"] == "tool":
            answers.add(message["tool_call_id"])
        blocks = message.get("content")
        for block in blocks if isinstance(blocks, list) else ():
            if block["type"] == "tool_use":
                calls.add(block["id"])
            elif block["type"] == "tool_result":
                answers.add(block["tool_use_id"])
        yield calls, answers, message["role"] == "assistant" or not answers


def _of_items(items: str | list[Mapping[str, Any]]) -> str:
    """Judge the input of OpenAI's Responses: pairs may have others between them."""
    if isinstance(items, str):
        return ""
    called, answered = (
        {item["call_id"] for item in items if item.get("type") == kind}
        for kind in ("function_call", "function_call_output")
    )
    if called - answered:
        return f"no tool output found for function calls {sorted(called - answered)}"
    if answered - called:
        return f"no tool call found for outputs {sorted(answered - called)}"
    return ""


def said(asked: Mapping[str, Any]) -> list[str]:
    """Return what the user has said, turn by turn."""
    turns = asked.get("input", asked.get("messages"))
    if isinstance(turns, str):
        return [turns]
    found = []
    for turn in turns or ():
        if turn.get("role") != "user":
            continue
        content = turn["content"]
        if not isinstance(content, str):
            content = "".join(block.get("text", "") for block in content)
        if content:
            found.append(content)
    return found
