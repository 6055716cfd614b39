"""Anthropic's dialect: its requests read, its replies shaped; the SDK's types agree."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from anthropic.types import Message, RawMessageStreamEvent
from pydantic import TypeAdapter

from hangup.demo.asked import Asked
from hangup.demo.brain import Script, ToolCall, compose
from hangup.demo.messages import Messages, MessageShapes

_CALLS = (ToolCall("search", {"topic": "cost"}), ToolCall("read", {"topic": "limits"}))
_EVENTS: TypeAdapter[RawMessageStreamEvent] = TypeAdapter(RawMessageStreamEvent)


def _shapes(script: Script) -> MessageShapes:
    reply = compose(Asked("m", texts=("one two three",)), 5, script)
    return Messages().shapes(1, "claude-x", reply)


def _events(shapes: MessageShapes) -> list[dict[str, Any]]:
    """Return the whole stream; each event's name is its type."""
    chunks = (shapes.chunk(index) for index in range(len(shapes.reply.chunks)))
    parts = (shapes.opening(), *chunks, shapes.closing(usage=True))
    events = []
    for block in b"".join(parts).decode().strip().split("\n\n"):
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        events.append(event)
    return events


@pytest.mark.parametrize("script", [Script(), Script(tool_calls=_CALLS)])
def test_everything_has_the_shape_that_the_sdk_knows(script: Script) -> None:
    shapes = _shapes(script)
    Message.model_validate(shapes.whole(), strict=True)
    for event in _events(shapes):
        if event["type"] != "ping":
            _EVENTS.validate_python(event)


def test_a_stream_is_the_same_text_as_the_whole_message() -> None:
    shapes = _shapes(Script())
    events = _events(shapes)
    texts = [e["delta"]["text"] for e in events if e["type"] == "content_block_delta"]
    (block,) = shapes.whole()["content"]
    assert "".join(texts) == block["text"]
    assert len(texts) == len(shapes.reply.chunks)


def test_each_tool_is_a_block_of_its_own_and_its_input_comes_in_pieces() -> None:
    shapes = _shapes(Script(tokens=40, tool_calls=_CALLS))
    told: dict[int, str] = {}
    open_block: int | None = None
    names = []
    for event in _events(shapes):
        match event["type"]:
            case "content_block_start":
                assert open_block is None
                open_block = event["index"]
                names.append(event["content_block"]["name"])
            case "content_block_delta":
                assert event["index"] == open_block
                piece = event["delta"]["partial_json"]
                told[event["index"]] = told.get(event["index"], "") + piece
            case "content_block_stop":
                assert event["index"] == open_block
                open_block = None
    assert open_block is None
    assert names == ["search", "read"]
    whole = [block["input"] for block in shapes.whole()["content"]]
    assert [json.loads(told[place]) for place in (0, 1)] == whole


def test_usage_opens_with_the_input_and_ends_with_all_of_it() -> None:
    shapes = _shapes(Script(tokens=50))
    first, *_, last, _stop = _events(shapes)
    start = first["message"]["usage"]
    assert (start["input_tokens"], start["output_tokens"]) == (
        shapes.reply.input_tokens,
        1,
    )
    assert (last["usage"]["input_tokens"], last["usage"]["output_tokens"]) == (
        shapes.reply.input_tokens,
        50,
    )
    assert shapes.whole()["usage"] == last["usage"]


def test_a_request_is_read_with_everything_the_model_reads() -> None:
    body = {
        "model": "claude-x",
        "max_tokens": 30,
        "stream": True,
        "system": "Be brief.",
        "tools": [{"name": "search", "input_schema": {"type": "object"}}],
        "messages": [
            {"role": "user", "content": "Why?"},
            {
                "role": "assistant",
                "content": [
                    {"type": "tool_use", "id": "x", "name": "search", "input": {"a": 1}}
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "x", "content": "Because."}
                ],
            },
        ],
    }
    asked = Messages().asked(body)
    assert (asked.model, asked.most, asked.stream) == ("claude-x", 30, True)
    assert (asked.tools, asked.rounds) == (("search",), 1)
    assert list(itertools.takewhile(str, asked.texts)) == [
        "Be brief.",
        "Why?",
        "search {'a': 1}",
        "Because.",
        'search  {"type": "object"}',
    ]
    silent = {**body, "tool_choice": {"type": "none"}}
    assert Messages().asked(silent).tools == ()
    assert Messages().asked(silent).texts == asked.texts
