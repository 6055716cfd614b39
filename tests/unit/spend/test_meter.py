"""A meter knows what was said, estimates what was not, and says which is which."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hangup.spend.fate import Basis
from hangup.spend.meter import Meter, Provider
from hangup.spend.usage import Usage

REPORTED, ESTIMATED = Basis.REPORTED, Basis.ESTIMATED
BODY = json.dumps(
    {
        "model": "asked-for",
        "max_completion_tokens": 100,
        "n": 2,
        "messages": [{"role": "user", "content": "one two three four " * 10}],
    }
).encode()


def sse(*events: dict[str, Any] | str) -> bytes:
    texts = (e if isinstance(e, str) else json.dumps(e) for e in events)
    return b"".join(f"data: {text}\n\n".encode() for text in texts)


def text(content: str, **more: Any) -> dict[str, Any]:
    return {
        "model": "m-1",
        "choices": [{"index": 0, "delta": {"content": content}}],
    } | more


def usage_chunk(**usage: Any) -> dict[str, Any]:
    return {"model": "m-1", "choices": [], "usage": usage}


def chat(body: bytes | None = BODY, **more: Any) -> Meter:
    meter = Meter.for_request("api.openai.com", "/v1/chat/completions", body, **more)
    assert meter is not None
    return meter


def whole(provider: Provider, body: dict[str, Any]) -> Meter:
    """A response that is no stream, in two chunks."""
    meter = Meter(provider, started_at=0.0)
    raw = json.dumps(body).encode()
    meter.feed(raw[:9], 9.0)
    meter.feed(raw[9:], 10.0)
    meter.close(10.0)
    return meter


def test_d1_a_chat_stream_cut_after_40_tokens_is_estimated_at_40() -> None:
    meter = chat()
    for now in range(40):
        meter.feed(sse(text(" word" if now % 3 else "word,")), float(now))
    assert meter.usage.output == 40
    assert meter.output_basis is meter.input_basis is ESTIMATED
    assert meter.usage.input is not None
    assert meter.usage.input > 0
    assert not meter.finished
    assert meter.tokens_before(19.0) == 20
    assert meter.unknown_bound == 200 - 40


def test_d1_anthropic_cut_after_30_deltas_has_the_input_and_estimates_30() -> None:
    meter = Meter(Provider.ANTHROPIC)
    usage = {"input_tokens": 25, "output_tokens": 1}
    meter.feed(sse({"type": "message_start", "message": {"usage": usage}}), 0.0)
    assert meter.usage == Usage(25, 1)
    for now in range(30):
        delta = {"type": "text_delta", "text": " token"}
        meter.feed(sse({"type": "content_block_delta", "delta": delta}), 1.0 + now)
    assert meter.usage == Usage(25, 30)
    assert (meter.input_basis, meter.output_basis) == (REPORTED, ESTIMATED)


@pytest.mark.parametrize("words", [0, 40])
def test_d1_an_explicit_zero_is_zero_and_no_estimate(words: int) -> None:
    meter = chat()
    meter.feed(sse(*[text(" word")] * words), 1.0)
    zero = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
    meter.feed(sse(usage_chunk(**zero)), 2.0)
    assert meter.usage == Usage(0, 0)
    assert meter.input_basis is meter.output_basis is REPORTED
    assert meter.tokens_before(9.0) == 0


def test_a_usage_of_null_is_no_usage() -> None:
    meter = chat()
    meter.feed(sse(text(" word", usage=None), text(" word", usage=None)), 1.0)
    assert meter.usage.output == 2
    assert meter.output_basis is ESTIMATED


def test_nothing_came_so_nothing_is_known() -> None:
    meter = chat(None)
    meter.close(1.0)
    assert meter.usage == Usage(None, None)
    assert meter.tokens_before(5.0) == 0
    assert meter.unknown_bound is None
    assert meter.streamed is None


def test_a_plain_call_cut_in_flight_knows_an_estimate_of_its_input_alone() -> None:
    meter = chat()
    meter.feed(b'{"id": "x", "choices": [{"message": {"content": "half', 1.0)
    meter.close(1.0)
    assert meter.usage.output is None
    assert meter.usage.input is not None
    assert meter.unknown_bound == 200


def test_text_after_a_report_is_estimated_on_top_of_it() -> None:
    """Some servers report in every chunk: a cut may come between two reports."""
    meter = chat()
    said = {"prompt_tokens": 7, "completion_tokens": 12}
    meter.feed(sse(text("some words", usage=said)), 1.0)
    assert meter.usage == Usage(7, 12)
    assert meter.output_basis is REPORTED
    meter.feed(sse(text(" a"), text(" b")), 2.0)
    assert meter.usage == Usage(7, 14)
    assert meter.output_basis is ESTIMATED
    assert meter.tokens_before(1.5) == 12


def test_d5_openai_reasoning_is_inside_the_output() -> None:
    details = {"reasoning_tokens": 956}
    usage = {"prompt_tokens": 5, "completion_tokens": 1970}
    meter = chat()
    meter.feed(sse(usage_chunk(**usage, completion_tokens_details=details)), 1.0)
    assert meter.usage == Usage(5, 1970, reasoning=956)


def test_reasoning_that_the_total_counts_beside_the_output_is_added() -> None:
    usage = {"prompt_tokens": 5, "completion_tokens": 100, "total_tokens": 135}
    details = {"reasoning_tokens": 30}
    meter = chat()
    meter.feed(sse(usage_chunk(**usage, completion_tokens_details=details)), 1.0)
    assert meter.usage == Usage(5, 130, reasoning=30)


def test_d5_anthropic_caches_are_beside_the_input() -> None:
    usage: dict[str, object] = {
        "input_tokens": 19,
        "cache_read_input_tokens": 39_000,
        "cache_creation_input_tokens": 0,
        "output_tokens": 4,
    }
    meter = whole(Provider.ANTHROPIC, {"type": "message", "usage": usage})
    assert meter.usage == Usage(39_019, 4, 39_000, 0)
    hour = {"ephemeral_5m_input_tokens": 10, "ephemeral_1h_input_tokens": 30}
    usage |= {"cache_creation_input_tokens": 40, "cache_creation": hour}
    meter = whole(Provider.ANTHROPIC, {"type": "message", "usage": usage})
    assert meter.usage == Usage(39_059, 4, 39_000, 40, cache_write_1h=30)


def test_anthropic_output_is_cumulative() -> None:
    """The placeholder of the start is not added to what the delta says."""
    start = {"usage": {"input_tokens": 9, "output_tokens": 3}}
    meter = Meter(Provider.ANTHROPIC)
    meter.feed(sse({"type": "message_start", "message": start}), 1.0)
    meter.feed(sse({"type": "message_delta", "usage": {"output_tokens": 11}}), 2.0)
    assert meter.usage == Usage(9, 11)
    meter.feed(sse({"type": "message_delta", "usage": {"output_tokens": 15}}), 3.0)
    assert meter.usage == Usage(9, 15)
    assert meter.tokens_before(2.5) == 11


def test_d5_gemini_thoughts_are_beside_the_candidates() -> None:
    said = {
        "promptTokenCount": 30,
        "toolUsePromptTokenCount": 12,
        "cachedContentTokenCount": 10,
        "candidatesTokenCount": 424,
        "thoughtsTokenCount": 572,
    }
    meter = whole(Provider.GEMINI, {"usageMetadata": said, "modelVersion": "g-1"})
    assert meter.usage == Usage(42, 996, 10, reasoning=572)
    assert meter.response_model == "g-1"


def test_gemini_as_a_json_array_is_a_stream_too() -> None:
    chunks = [
        {
            "candidates": [{"content": {"parts": [{"text": "some [words] {here}"}]}}],
            "usageMetadata": {"promptTokenCount": 4, "candidatesTokenCount": n},
        }
        for n in (10, 20, 30)
    ]
    meter = Meter(Provider.GEMINI)
    raw = json.dumps(chunks, indent=2).encode()
    for now in range(0, len(raw), 7):
        meter.feed(raw[now : now + 7], float(now))
    assert meter.usage == Usage(4, 30)
    assert meter.streamed
    assert {meter.tokens_before(float(now)) for now in range(len(raw))} == {
        0,
        10,
        20,
        30,
    }


@pytest.mark.parametrize(
    ("provider", "body"),
    [
        (
            Provider.OPENAI_CHAT,
            {
                "model": "m-1",
                "choices": [{"message": {"content": "a b c"}, "finish_reason": "stop"}],
                "usage": {"prompt_tokens": 3, "completion_tokens": 8},
            },
        ),
        (
            Provider.OPENAI_RESPONSES,
            {
                "model": "m-1",
                "status": "completed",
                "output": [{"content": [{"type": "output_text", "text": "a b c"}]}],
                "usage": {"input_tokens": 3, "output_tokens": 8},
            },
        ),
        (
            Provider.ANTHROPIC,
            {
                "type": "message",
                "model": "m-1",
                "content": [{"type": "text", "text": "a b c"}],
                "usage": {"input_tokens": 3, "output_tokens": 8},
            },
        ),
        (
            Provider.GEMINI,
            {
                "modelVersion": "m-1",
                "candidates": [
                    {"content": {"parts": [{"text": "a b c"}]}, "finishReason": "STOP"}
                ],
                "usageMetadata": {"promptTokenCount": 3, "candidatesTokenCount": 8},
            },
        ),
    ],
)
def test_a_plain_response_is_read_when_it_is_over(
    provider: Provider, body: dict[str, Any]
) -> None:
    meter = whole(provider, body)
    assert meter.usage == Usage(3, 8)
    assert meter.finished
    assert meter.streamed is False
    assert meter.first_token_at is None
    assert meter.unknown_bound == 0
    assert meter.response_model == "m-1"
    # Of a body that came at once only a proportion can be told.
    assert [meter.tokens_before(t) for t in (0.0, 5.0, 10.0)] == [0, 4, 8]
    for key in ("usage", "usageMetadata"):
        body.pop(key, None)
    estimated = whole(provider, body)
    assert estimated.usage.output == 3
    assert estimated.output_basis is ESTIMATED


def test_a_late_total_sets_the_timeline_right_in_proportion() -> None:
    meter = chat()
    for now in range(10):
        meter.feed(sse(text(" word")), float(now))
    meter.feed(sse(usage_chunk(prompt_tokens=1, completion_tokens=30), "[DONE]"), 50.0)
    assert [meter.tokens_before(t) for t in (-1.0, 0.0, 4.5, 9.0)] == [0, 3, 15, 30]
    assert (meter.first_token_at, meter.last_token_at) == (0.0, 9.0)
    assert meter.finished


def test_thoughts_that_were_not_streamed_came_before_the_first_token() -> None:
    meter = chat(started_at=0.0)
    meter.feed(sse(*[text(" word")] * 5), 10.0)
    meter.feed(sse(*[text(" word")] * 5), 20.0)
    usage = {"prompt_tokens": 1, "completion_tokens": 110}
    details = {"reasoning_tokens": 100}
    meter.feed(sse(usage_chunk(**usage, completion_tokens_details=details)), 21.0)
    moments = (0.0, 5.0, 9.99, 10.0, 20.0)
    assert [meter.tokens_before(t) for t in moments] == [0, 50, 100, 105, 110]


def test_thoughts_that_were_streamed_are_counted_where_they_came() -> None:
    meter = chat(started_at=0.0)
    for now in range(1, 5):
        event = text("")
        event["choices"][0]["delta"] = {"content": None, "reasoning_content": " hm"}
        meter.feed(sse(event), float(now))
    assert meter.usage.reasoning == 4
    meter.feed(sse(text(" so")), 5.0)
    usage = {"prompt_tokens": 1, "completion_tokens": 5}
    details = {"reasoning_tokens": 4}
    meter.feed(sse(usage_chunk(**usage, completion_tokens_details=details)), 6.0)
    assert [meter.tokens_before(t + 0.5) for t in range(6)] == [0, 1, 2, 3, 4, 5]


def test_arguments_of_tools_are_output() -> None:
    meter = chat()
    for piece in ('{"', "city", '":"', "Paris", '"}'):
        event = text("")
        call = {"index": 0, "function": {"arguments": piece}}
        event["choices"][0]["delta"] = {"tool_calls": [call]}
        meter.feed(sse(event), 1.0)
    assert meter.usage.output == 5


def test_all_choices_of_a_request_for_several_are_output() -> None:
    meter = chat()
    for index in (0, 1) * 5:
        event = text(" word")
        event["choices"][0]["index"] = index
        meter.feed(sse(event), 1.0)
    assert meter.usage.output == 10


def test_an_event_beyond_the_bound_is_said_to_be_dropped() -> None:
    meter = chat()
    meter.feed(sse(text(" word")), 0.0)
    for _ in range(5):
        meter.feed(b"data: " + b"x" * 2**20, 1.0)
    meter.feed(b"\n\n" + sse(text(" word")), 2.0)
    assert meter.dropped == 1
    assert meter.usage.output == 2


def test_the_last_event_counts_though_its_empty_line_was_cut_off() -> None:
    meter = chat()
    meter.feed(sse(text(" word")) + sse(text(" word"))[:-1], 0.0)
    meter.close(1.0)
    meter.close(2.0)
    assert meter.usage.output == 2


CHAT_BODY = b'{"model": "m", "messages": []}'


@pytest.mark.parametrize(
    ("host", "path", "body", "provider"),
    [
        ("a.b", "/v1/chat/completions?x=1", None, Provider.OPENAI_CHAT),
        ("x", "/openai/deployments/d/chat/completions", b"", Provider.OPENAI_CHAT),
        (
            "x",
            "/v1/responses",
            b'{"model":"m","input":"hi"}',
            Provider.OPENAI_RESPONSES,
        ),
        ("api.openai.com", "/v1/responses", b"", Provider.OPENAI_RESPONSES),
        ("x", "/survey/responses", b'{"answers": []}', None),
        ("api.openai.com", "/v1/responses/r_1/cancel", b"", None),
        ("api.anthropic.com:443", "/v1/messages", b"", Provider.ANTHROPIC),
        ("x", "/anthropic/v1/messages", CHAT_BODY, Provider.ANTHROPIC),
        ("localhost", "/messages/?session_id=1", b'{"jsonrpc": "2.0"}', None),
        ("api.openai.com", "/v1/threads/t/messages", CHAT_BODY, None),
        ("api.anthropic.com", "/v1/messages/count_tokens", CHAT_BODY, None),
        ("x", "/v1beta/models/g:streamGenerateContent?alt=sse", None, Provider.GEMINI),
        ("x", "/v1/models/g:generateContent", None, Provider.GEMINI),
        ("x", "/v1/models/g:countTokens", None, None),
    ],
)
def test_the_path_tells_the_dialect(
    host: str, path: str, body: bytes | None, provider: Provider | None
) -> None:
    meter = Meter.for_request(host, path, body)
    assert (meter and meter.provider) == provider


@pytest.mark.parametrize(
    ("path", "body", "model", "most"),
    [
        ("/v1/chat/completions", BODY, "asked-for", 200),
        ("/openai/deployments/mine/chat/completions", b"{}", "mine", None),
        (
            "/v1/models/gem:generateContent",
            b'{"generationConfig": {"maxOutputTokens": 5, "candidateCount": 3}}',
            "gem",
            15,
        ),
        ("/v1/chat/completions", b"no json", None, None),
        ("/v1/chat/completions", b'{"model": 5, "max_tokens": true}', None, None),
        ("/v1/chat/completions", b"[" * 100_000, None, None),
    ],
)
def test_the_request_tells_the_model_and_the_limit(
    path: str, body: bytes, model: str | None, most: int | None
) -> None:
    meter = Meter.for_request("x", path, body)
    assert meter is not None
    assert meter.request_model == model
    assert meter.call.max_output == most


def test_what_comes_in_events_of_one_word_is_metered_as_what_comes_in_halves() -> None:
    """Nearly every event is one that is not looked at closely."""
    words = (
        "one",
        " of",
        " the",
        " many",
        "words",
        ",",
        ' \\"',
        " résumé",
        "",
        "a b",
        " undeniably",
    )
    at_once, halved = chat(started_at=0.0), chat(started_at=0.0)
    for number in range(3_000):
        event, now = sse(text(words[number % len(words)])), float(number)
        at_once.feed(event, now)
        middle = number % len(event)
        halved.feed(event[:middle], now)
        halved.feed(event[middle:], now)
        if number % 500 == 0:
            assert at_once.tokens_before(now - 3) == halved.tokens_before(now - 3)
    assert at_once._output.estimates == halved._output.estimates
    for meter in (at_once, halved):
        meter.feed(sse(usage_chunk(prompt_tokens=9, completion_tokens=3_500)), 3_001.0)
        meter.feed(b"data: [DONE]\n\n", 3_001.0)
        meter.close(3_002.0)
    assert at_once.usage == halved.usage
    assert at_once.events == halved.events
    assert at_once.moments() == halved.moments()
    assert at_once.first_token_at == halved.first_token_at
    for moment in range(3_003):
        assert at_once.tokens_before(moment) == halved.tokens_before(moment)
