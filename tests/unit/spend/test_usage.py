"""Usage is read in every spelling, and unknown is never mixed up with zero."""

from __future__ import annotations

import math
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.attributes import BoundedAttributes

from hangup.spend.usage import Usage, read_aggregate, read_first_token, read_usage

FIELDS = ("input", "output", "cache_read", "cache_write", "reasoning")

SPELLINGS = [
    ("gen_ai.usage.input_tokens", "input"),
    ("gen_ai.usage.prompt_tokens", "input"),
    ("llm.usage.prompt_tokens", "input"),
    ("llm.token_count.prompt", "input"),
    ("gen_ai.usage.output_tokens", "output"),
    ("gen_ai.usage.completion_tokens", "output"),
    ("llm.usage.completion_tokens", "output"),
    ("llm.token_count.completion", "output"),
    ("gen_ai.usage.cache_read.input_tokens", "cache_read"),
    ("gen_ai.usage.cache_read_input_tokens", "cache_read"),
    ("gen_ai.usage.details.cache_read_tokens", "cache_read"),
    ("llm.usage.cache_read_input_tokens", "cache_read"),
    ("llm.token_count.prompt_details.cache_read", "cache_read"),
    ("gen_ai.usage.cache_write.input_tokens", "cache_write"),
    ("gen_ai.usage.cache_creation.input_tokens", "cache_write"),
    ("gen_ai.usage.cache_creation_input_tokens", "cache_write"),
    ("gen_ai.usage.cache_write_input_tokens", "cache_write"),
    ("gen_ai.usage.details.cache_write_tokens", "cache_write"),
    ("llm.usage.cache_creation_input_tokens", "cache_write"),
    ("llm.token_count.prompt_details.cache_write", "cache_write"),
    ("gen_ai.usage.reasoning.output_tokens", "reasoning"),
    ("gen_ai.usage.reasoning_tokens", "reasoning"),
    ("gen_ai.usage.details.reasoning_tokens", "reasoning"),
    ("llm.usage.reasoning_tokens", "reasoning"),
    ("llm.token_count.completion_details.reasoning", "reasoning"),
]


@pytest.mark.parametrize(("name", "field"), SPELLINGS)
def test_each_spelling_fills_its_field_and_no_other(name: str, field: str) -> None:
    usage = read_usage({"gen_ai.operation.name": "chat", name: 7})
    assert usage is not None
    assert {part: getattr(usage, part) for part in FIELDS} == {
        part: 7 if part == field else None for part in FIELDS
    }


def test_two_spellings_of_one_number_are_read_once() -> None:
    attributes = {
        "llm.token_count.prompt": 9,
        "gen_ai.usage.prompt_tokens": 8,
        "gen_ai.usage.input_tokens": 7,
        "llm.usage.prompt_tokens": 6,
    }
    assert read_usage(attributes) == Usage(7, None)
    assert read_usage(dict(reversed(attributes.items()))) == Usage(7, None)


def test_a_broken_preferred_spelling_gives_way_to_the_next() -> None:
    attributes = {"gen_ai.usage.input_tokens": -1, "gen_ai.usage.prompt_tokens": 8}
    assert read_usage(attributes) == Usage(8, None)


def test_an_explicit_zero_stays_zero() -> None:
    usage = read_usage(
        {"gen_ai.usage.input_tokens": 0, "gen_ai.usage.output_tokens": 0}
    )
    assert usage == Usage(0, 0)
    assert usage is not None
    assert usage.known


def test_a_span_without_usage_says_nothing() -> None:
    assert read_usage({}) is None
    assert read_usage({"gen_ai.request.model": "m", "gen_ai.usage.cost": 0.1}) is None


def test_a_subset_alone_leaves_the_usage_unknown() -> None:
    usage = read_usage({"gen_ai.usage.cache_read.input_tokens": 0})
    assert usage == Usage(None, None, cache_read=0)
    assert usage is not None
    assert not usage.known


@pytest.mark.parametrize(
    ("value", "count"), [(12, 12), (12.0, 12), ("12", 12), (" 12 ", 12), ("12.0", 12)]
)
def test_a_count_may_arrive_as_float_or_text(value: object, count: int) -> None:
    usage = read_usage({"gen_ai.usage.input_tokens": value})
    assert usage is not None
    assert usage.input == count


@pytest.mark.parametrize(
    "value",
    [
        *(-1, -1.0, "-1", math.nan, math.inf, -math.inf, "nan", "inf", 1.5, "1.5"),
        *(True, False, None, "", "many", b"12", (12,), [12], {"n": 12}, object()),
        *(2**53, 10**400, 1e300, "9" * 5000),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_what_is_no_count_is_unknown(value: object) -> None:
    assert read_usage({"gen_ai.usage.input_tokens": value}) is None


def test_a_count_as_an_int_subclass_becomes_a_plain_int() -> None:
    class Tokens(int):
        pass

    usage = read_usage({"gen_ai.usage.input_tokens": Tokens(5)})
    assert usage is not None
    assert type(usage.input) is int
    assert usage.input == 5


def test_subsets_are_not_added_to_their_whole() -> None:
    usage = read_usage(
        {
            "gen_ai.usage.input_tokens": 39_019,
            "gen_ai.usage.cache_read.input_tokens": 39_000,
            "gen_ai.usage.output_tokens": 1970,
            "gen_ai.usage.reasoning.output_tokens": 956,
        }
    )
    assert usage == Usage(39_019, 1970, cache_read=39_000, reasoning=956)
    assert usage is not None
    assert usage.total == 40_989


def test_a_cache_reported_beside_the_input_is_put_back_in() -> None:
    usage = read_usage(
        {
            "gen_ai.usage.input_tokens": 19,
            "gen_ai.usage.cache_read_input_tokens": 39_000,
            "gen_ai.usage.cache_creation_input_tokens": 100,
        }
    )
    assert usage == Usage(39_119, None, cache_read=39_000, cache_write=100)


def test_thoughts_reported_beside_the_output_are_put_back_in() -> None:
    usage = read_usage(
        {
            "gen_ai.usage.output_tokens": 424,
            "gen_ai.usage.reasoning.output_tokens": 572,
        }
    )
    assert usage == Usage(None, 996, reasoning=572)


def test_aggregates_are_read_apart_from_calls() -> None:
    attributes = {
        "gen_ai.aggregated_usage.input_tokens": 113,
        "gen_ai.aggregated_usage.output_tokens": 11,
        "gen_ai.aggregated_usage.details.cache_read_tokens": 50,
    }
    assert read_usage(attributes) is None
    assert read_aggregate(attributes) == Usage(113, 11, cache_read=50)
    assert read_aggregate({"gen_ai.usage.input_tokens": 1}) is None
    assert read_aggregate({"llm.token_count.prompt": 1}) is None


def test_the_attributes_of_an_sdk_span_are_read() -> None:
    attributes = MappingProxyType(
        BoundedAttributes(attributes={"gen_ai.usage.input_tokens": 3}, immutable=True)
    )
    assert read_usage(attributes) == Usage(3, None)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [(0.25, 0.25), (1, 1.0), ("0.5", 0.5), (0, 0.0)]
    + [(bad, None) for bad in (-0.1, math.nan, math.inf, True, "soon", None, (1,))]
    + [(10**400, None)],
    ids=lambda value: repr(value)[:20],
)
def test_the_first_chunk_is_read_in_seconds(
    value: object, seconds: float | None
) -> None:
    assert read_first_token({"gen_ai.response.time_to_first_chunk": value}) == seconds


def test_a_call_without_a_first_chunk_has_none() -> None:
    assert read_first_token({}) is None


def test_an_agent_adds_only_what_its_descendants_did_not_report() -> None:
    counted = Usage(56, 5) + Usage(57, 6)
    assert Usage(113, 11).beyond(counted) == Usage(0, 0)
    assert Usage(123, 21).beyond(counted) == Usage(10, 10)
    assert Usage(100, None).beyond(counted) == Usage(0, None)
    assert Usage(5, 6).beyond(Usage(None, None)) == Usage(5, 6)


def test_a_sum_is_unknown_only_where_both_are() -> None:
    assert Usage(1, None, reasoning=2) + Usage(None, None, reasoning=3) == Usage(
        1, None, reasoning=5
    )


names = st.sampled_from([name for name, _ in SPELLINGS])
values = st.one_of(
    st.integers(),
    st.floats(),
    st.text(),
    st.booleans(),
    st.none(),
    st.binary(),
    st.lists(st.integers()),
)


@given(st.dictionaries(st.one_of(names, st.text()), values))
def test_whatever_the_attributes_hold_the_counts_are_sound(
    attributes: dict[str, object],
) -> None:
    usage = read_usage(attributes)
    read_first_token(attributes)
    if usage is None:
        return
    parts = [getattr(usage, field) for field in FIELDS]
    assert all(part is None or (type(part) is int and part >= 0) for part in parts)
    assert any(part is not None for part in parts)
    if usage.input is not None:
        assert usage.input >= (usage.cache_read or 0) + (usage.cache_write or 0)
    if usage.output is not None:
        assert usage.output >= (usage.reasoning or 0)
