from __future__ import annotations

import itertools

import pytest

from hangup.demo.asked import Asked
from hangup.demo.brain import (
    DELEGATE,
    PER_MESSAGE,
    Script,
    ToolCall,
    compose,
    timeline,
)


def _asked(words: int = 12) -> Asked:
    return Asked("m", texts=("word " * words,))


def test_the_same_seed_gives_the_same_reply() -> None:
    assert compose(_asked(), 5, Script()) == compose(_asked(), 5, Script())


def test_another_seed_gives_another_reply() -> None:
    assert compose(_asked(), 5, Script()) != compose(_asked(), 6, Script())


def test_when_what_is_generated_does_not_depend_on_the_prompt() -> None:
    short, long = compose(_asked(3), 5, Script()), compose(_asked(300), 5, Script())
    assert short.chunks == long.chunks == timeline(5, Script())
    assert short.input_tokens < long.input_tokens


def test_chunks_hold_one_to_eight_tokens_up_to_the_most_asked_for() -> None:
    for seed in range(50):
        chunks = timeline(seed, Script(), 40)
        assert {chunk.tokens for chunk in chunks} <= set(range(1, 9))
        assert 24 <= sum(chunk.tokens for chunk in chunks) <= 40


def test_a_text_is_as_long_as_its_tokens_are() -> None:
    """About 4.5 characters a token in total; one answer may be well off that."""
    replies = [compose(_asked(), seed, Script()) for seed in range(60)]
    ratios = [len("".join(r.texts)) / r.output_tokens for r in replies]
    assert 4.3 <= sum(ratios) / len(ratios) <= 4.8
    assert min(ratios) < 4.2
    assert max(ratios) > 4.9


def test_the_number_of_chunks_tells_nothing_of_the_tokens() -> None:
    replies = [compose(_asked(), seed, Script(tokens=48)) for seed in range(30)]
    assert {reply.output_tokens for reply in replies} == {48}
    assert len({len(reply.chunks) for reply in replies}) >= 5


def test_input_goes_by_the_length_of_the_prompt_and_its_messages() -> None:
    text = "a limit that is set beforehand " * 100
    one = [compose(Asked("m", texts=(text,)), n, Script()) for n in range(30)]
    expected = len(text) / 4.5
    assert all(abs(r.input_tokens / expected - 1) < 0.11 for r in one)
    assert len({reply.input_tokens for reply in one}) > 10
    empty = compose(Asked("m", texts=("",) * 7), 1, Script())
    assert empty.input_tokens == 7 * PER_MESSAGE


def test_offsets_grow_by_tokens_over_rate_within_the_jitter() -> None:
    script = Script(rate=10.0, first_token=0.5, jitter=0.2)
    chunks = timeline(3, script)
    assert 0.4 <= chunks[0].offset <= 0.6
    for before, after in itertools.pairwise(chunks):
        gap = after.offset - before.offset
        assert 0.8 <= gap * 10.0 / after.tokens <= 1.2 + 1e-9


def test_a_scripted_text_arrives_whole_whatever_the_chunks() -> None:
    reply = compose(_asked(), 5, Script(tokens=50, text="exactly this, no more"))
    assert "".join(reply.texts) == "exactly this, no more"
    assert reply.output_tokens == 50


def test_scripted_tool_calls_take_the_place_of_text() -> None:
    call = ToolCall("search", {"topic": "x"})
    reply = compose(_asked(), 5, Script(tool_calls=(call,)))
    assert reply.tool_calls == (call,)
    assert set(reply.texts) == {""}


@pytest.mark.parametrize("tokens", [1, 3, 40])
def test_arguments_come_in_pieces_that_are_whole_together(tokens: int) -> None:
    calls = (
        ToolCall("a", {"topic": "one two"}),
        ToolCall("b"),
        ToolCall("c", {"n": 1}),
    )
    reply = compose(_asked(), 5, Script(tokens=tokens, tool_calls=calls))
    assert len(reply.arguments) == len(reply.chunks)
    pieces = list(itertools.chain(*reply.arguments))
    assert [place for place, _ in pieces] == sorted(place for place, _ in pieces)
    for place, call in enumerate(calls):
        text = "".join(piece for own, piece in pieces if own == place)
        assert text == call.arguments_json


def test_each_call_begins_in_exactly_one_chunk() -> None:
    calls = (ToolCall("a", {"topic": "one two three"}), ToolCall("b"))
    reply = compose(_asked(), 5, Script(tokens=30, tool_calls=calls))
    for place in (0, 1):
        begun = [
            index
            for index, pieces in enumerate(reply.arguments)
            if any(own == place for own, _ in pieces) and reply.begins(index, place)
        ]
        assert len(begun) == 1


def test_an_answer_of_no_tokens_is_no_chunks() -> None:
    reply = compose(_asked(), 5, Script(tokens=0, tool_calls=(ToolCall("a"),)))
    assert (reply.chunks, reply.texts, reply.arguments) == ((), (), ())


def test_a_planning_model_asks_for_tools_then_the_delegate_then_none() -> None:
    tools = ("search", "read", "calculate", DELEGATE)
    replies = [
        compose(
            Asked("m", tools=tools, rounds=rounds, most=44), 5, Script(plans_tools=True)
        )
        for rounds in range(3)
    ]
    names = [[call.name for call in reply.tool_calls] for reply in replies]
    assert 2 <= len(names[0]) <= 3
    assert DELEGATE not in names[0]
    assert names[1:] == [[DELEGATE], []]
    # What it says to its tools is as long as the tokens that it takes for it.
    length = len(replies[1].tool_calls[0].arguments_json)
    assert 3.5 <= length / replies[1].output_tokens <= 5.5


def test_a_script_can_be_overridden_field_by_field() -> None:
    text = '{"tokens": 3, "tool_calls": [{"name": "search"}]}'
    script = Script(rate=5.0).overridden(text)
    assert script == Script(rate=5.0, tokens=3, tool_calls=(ToolCall("search"),))


@pytest.mark.parametrize("text", ["[]", "{", '{"tokenz": 3}'])
def test_an_override_that_cannot_be_meant_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"script|Expecting"):
        Script().overridden(text)
