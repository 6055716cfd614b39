"""Read what a call used from its span attributes, in every spelling in use.

Unknown is ``None`` and an explicit zero is 0: the two are never mixed up, and nothing
is estimated here. Nothing in this module raises, whatever the attributes hold.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

# The largest integer a float holds exactly. No call uses that many tokens; a larger
# value is a broken report, and one of them would drown every counter it is added to.
_MOST_TOKENS = 2**53 - 1


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one call. ``None`` is unknown, 0 is an explicit zero. Immutable.

    Attributes:
        input: Tokens of the prompt, those read from and written to a cache included.
        output: Tokens generated, reasoning included.
        cache_read: The part of ``input`` that a cache answered.
        cache_write: The part of ``input`` that was written to a cache.
        reasoning: The part of ``output`` that was reasoning.
        cache_write_1h: The part of ``cache_write`` that is kept for an hour; no
            instrumentation tells, the wire does.
    """

    input: int | None
    output: int | None
    cache_read: int | None = None
    cache_write: int | None = None
    reasoning: int | None = None
    cache_write_1h: int | None = None

    @property
    def total(self) -> int:
        """Input and output tokens, an unknown one counted as 0."""
        return (self.input or 0) + (self.output or 0)

    @property
    def known(self) -> bool:
        """Whether the input or the output is known."""
        return self.input is not None or self.output is not None

    def __add__(self, other: Usage) -> Usage:
        """Return the sum, field by field; unknown only where both are unknown."""
        return Usage(
            *(_plus(a, b) for a, b in zip(_row(self), _row(other), strict=True))
        )

    def beyond(self, counted: Usage) -> Usage:
        """Return what this aggregate reports beyond what was ``counted`` already.

        An agent span repeats the sum of its descendants: only the rest is its own.
        Never negative: descendants that report more than their aggregate leave 0.
        """
        return Usage(
            *(
                None if whole is None else max(0, whole - (part or 0))
                for whole, part in zip(_row(self), _row(counted), strict=True)
            )
        )


def _row(usage: Usage) -> tuple[int | None, ...]:
    return (
        usage.input,
        usage.output,
        usage.cache_read,
        usage.cache_write,
        usage.reasoning,
        usage.cache_write_1h,
    )


def _plus(a: int | None, b: int | None) -> int | None:
    if a is None:
        return b
    return a if b is None else a + b


# Per field of Usage, in its order: the spellings, the preferred one first. Of two that
# disagree on one span the first wins, so one call is never read as their sum.
# gen_ai.usage.*: OpenTelemetry semantic conventions, newest name first, then the
# flattened forms of Traceloop and others, then the details of pydantic-ai.
# llm.usage.*: old Traceloop. llm.token_count.*: OpenInference.
_SPELLINGS = (
    (
        "gen_ai.usage.input_tokens",
        "gen_ai.usage.prompt_tokens",
        "llm.usage.input_tokens",
        "llm.usage.prompt_tokens",
        "llm.token_count.prompt",
    ),
    (
        "gen_ai.usage.output_tokens",
        "gen_ai.usage.completion_tokens",
        "llm.usage.output_tokens",
        "llm.usage.completion_tokens",
        "llm.token_count.completion",
    ),
    (
        "gen_ai.usage.cache_read.input_tokens",
        "gen_ai.usage.cache_read_input_tokens",
        "gen_ai.usage.cache_read_tokens",
        "gen_ai.usage.cached_input_tokens",
        "gen_ai.usage.details.cache_read_tokens",
        "gen_ai.usage.details.cache_read_input_tokens",
        "gen_ai.usage.details.cached_tokens",
        "llm.usage.cache_read.input_tokens",
        "llm.usage.cache_read_input_tokens",
        "llm.token_count.prompt_details.cache_read",
    ),
    (
        "gen_ai.usage.cache_write.input_tokens",
        "gen_ai.usage.cache_creation.input_tokens",
        "gen_ai.usage.cache_write_input_tokens",
        "gen_ai.usage.cache_creation_input_tokens",
        "gen_ai.usage.cache_write_tokens",
        "gen_ai.usage.cache_creation_tokens",
        "gen_ai.usage.details.cache_write_tokens",
        "gen_ai.usage.details.cache_creation_input_tokens",
        "llm.usage.cache_write_input_tokens",
        "llm.usage.cache_creation_input_tokens",
        "llm.token_count.prompt_details.cache_write",
    ),
    (
        "gen_ai.usage.reasoning.output_tokens",
        "gen_ai.usage.reasoning_output_tokens",
        "gen_ai.usage.reasoning_tokens",
        "gen_ai.usage.details.reasoning_tokens",
        "llm.usage.reasoning_tokens",
        "llm.token_count.completion_details.reasoning",
    ),
)

_PREFIX = "gen_ai.usage."
_AGGREGATE_PREFIX = "gen_ai.aggregated_usage."
_FIRST_CHUNK = "gen_ai.response.time_to_first_chunk"


def _places(spellings: tuple[tuple[str, ...], ...]) -> dict[str, tuple[int, int]]:
    """Map each spelling to its field and its rank among the spellings of the field."""
    return {
        name: (field, rank)
        for field, names in enumerate(spellings)
        for rank, name in enumerate(names)
    }


_USAGE = _places(_SPELLINGS)
_AGGREGATE = _places(
    tuple(
        tuple(
            _AGGREGATE_PREFIX + name.removeprefix(_PREFIX)
            for name in names
            if name.startswith(_PREFIX)
        )
        for names in _SPELLINGS
    )
)


def read_usage(attributes: Mapping[str, object]) -> Usage | None:
    """Read the usage of a call; None when the span says nothing about it.

    A subset that exceeds its whole proves that it was reported beside it (raw
    Anthropic caches, Gemini thoughts), so it is put back in: ``Usage.input`` and
    ``Usage.output`` are always the totals. Never raises.
    """
    return _read(attributes, _USAGE)


def read_aggregate(attributes: Mapping[str, object]) -> Usage | None:
    """Read ``gen_ai.aggregated_usage.*``, the sum that an agent span repeats.

    None when there is none. Never raises.
    """
    return _read(attributes, _AGGREGATE)


def read_first_token(attributes: Mapping[str, object]) -> float | None:
    """Read when the first chunk came, in seconds from the start of the call.

    None when unknown. Never raises.
    """
    value = attributes.get(_FIRST_CHUNK)
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        seconds = float(value)
    except (ValueError, OverflowError):
        return None
    return seconds if math.isfinite(seconds) and seconds >= 0 else None


def _read(
    attributes: Mapping[str, object], places: Mapping[str, tuple[int, int]]
) -> Usage | None:
    found: list[int | None] = [None] * 5
    ranks = [99] * 5
    said = False
    # One pass over the keys: a model span has a dozen where there are thirty spellings.
    for key in attributes:
        if key not in places:
            continue
        field, rank = places[key]
        if rank < ranks[field] and (count := _count(attributes.get(key))) is not None:
            found[field] = count
            ranks[field] = rank
            said = True
    if not said:
        return None
    tokens_in, tokens_out, cache_read, cache_write, reasoning = found
    cached = (cache_read or 0) + (cache_write or 0)
    if tokens_in is not None and cached > tokens_in:
        tokens_in += cached
    if tokens_out is not None and reasoning is not None and reasoning > tokens_out:
        tokens_out += reasoning
    return Usage(tokens_in, tokens_out, cache_read, cache_write, reasoning)


def _count(value: object) -> int | None:
    """Read a token count; None for anything that is not one."""
    if type(value) is not int:
        value = _as_int(value)
        if value is None:
            return None
    return value if 0 <= value <= _MOST_TOKENS else None


def _as_int(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    if isinstance(value, int):
        return int(value)
    try:
        number = float(value)
    except ValueError:
        return None
    # Beyond _MOST_TOKENS a float is not exact, and out of range anyway.
    return int(number) if math.isfinite(number) and number.is_integer() else None
