from __future__ import annotations

import itertools
from typing import Any

import pytest

from hangup.demo.brain import DELEGATE, Script, ToolCall, compose, timeline


def _body(words: int = 12, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "word " * words}], **more}


def _tool(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def test_the_same_seed_gives_the_same_reply() -> None:
    assert compose(_body(), 5, Script()) == compose(_body(), 5, Script())


def test_another_seed_gives_another_reply() -> None:
    assert compose(_body(), 5, Script()) != compose(_body(), 6, Script())


def test_when_what_is_generated_does_not_depend_on_the_prompt() -> None:
    short, long = compose(_body(3), 5, Script()), compose(_body(300), 5, Script())
    assert short.chunks == long.chunks == timeline(5, Script())
    assert short.input_tokens < long.input_tokens


def test_chunks_hold_one_to_eight_tokens_up_to_the_most_asked_for() -> None:
    for seed in range(50):
        chunks = timeline(seed, Script(), 40)
        assert {chunk.tokens for chunk in chunks} <= set(range(1, 9))
        assert 24 <= sum(chunk.tokens for chunk in chunks) <= 40


def test_tokens_cannot_be_read_off_the_text() -> None:
    replies = [compose(_body(), seed, Script(tokens=48)) for seed in range(30)]
    assert {reply.output_tokens for reply in replies} == {48}
    assert len({len("".join(reply.texts).split()) for reply in replies}) > 10


def test_offsets_grow_by_tokens_over_rate_within_the_jitter() -> None:
    script = Script(rate=10.0, first_token=0.5, jitter=0.2)
    chunks = timeline(3, script)
    assert 0.4 <= chunks[0].offset <= 0.6
    for before, after in itertools.pairwise(chunks):
        gap = after.offset - before.offset
        assert 0.8 <= gap * 10.0 / after.tokens <= 1.2 + 1e-9


def test_a_scripted_text_arrives_whole_whatever_the_chunks() -> None:
    reply = compose(_body(), 5, Script(tokens=50, text="exactly this, no more"))
    assert "".join(reply.texts) == "exactly this, no more"
    assert reply.output_tokens == 50


def test_scripted_tool_calls_take_the_place_of_text() -> None:
    call = ToolCall("search", {"topic": "x"})
    reply = compose(_body(), 5, Script(tool_calls=(call,)))
    assert reply.tool_calls == (call,)
    assert set(reply.texts) == {""}


def test_a_planning_model_asks_for_tools_then_the_delegate_then_none() -> None:
    tools = [_tool(name) for name in ("search", "read", "calculate", DELEGATE)]
    asked: list[dict[str, Any]] = []
    rounds = []
    for _ in range(3):
        body = {"messages": [{"role": "user", "content": "hi"}, *asked], "tools": tools}
        reply = compose(body, 5, Script(plans_tools=True))
        rounds.append([call.name for call in reply.tool_calls])
        asked.append({"role": "assistant", "tool_calls": [{"id": "x"}]})
    assert 2 <= len(rounds[0]) <= 3
    assert DELEGATE not in rounds[0]
    assert rounds[1:] == [[DELEGATE], []]


def test_a_script_can_be_overridden_field_by_field() -> None:
    text = '{"tokens": 3, "tool_calls": [{"name": "search"}]}'
    script = Script(rate=5.0).overridden(text)
    assert script == Script(rate=5.0, tokens=3, tool_calls=(ToolCall("search"),))


@pytest.mark.parametrize("text", ["[]", "{", '{"tokenz": 3}'])
def test_an_override_that_cannot_be_meant_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"script|Expecting"):
        Script().overridden(text)
