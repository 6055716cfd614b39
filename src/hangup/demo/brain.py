"""How the model answers: a pure function of the request, a seed and a script.

The number of tokens, their rate and their chunks come from the seed alone, so a
call's duration is known before it is made (:mod:`hangup.demo.forecast` relies on
it); the text does not tell how many tokens it was.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from hangup.demo.seeds import draw

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_PROSE = (
    "the evidence suggests that most teams report lower cost after a clear limit "
    "was set while others saw queues grow because retries kept running and nobody "
    "read the answer which means a deadline shared by every part of the work is "
    "worth more than faster hardware or a larger model in the cases we compared"
)
_WORDS = _PROSE.split()

DELEGATE = "delegate"
"""The tool a scripted plan keeps for last: by then there is something to hand over."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool the model asks for."""

    name: str
    arguments: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Script:
    """How requests are answered; every field has a plain default.

    Attributes:
        tokens: Output tokens; None draws them, up to the request's ``max_tokens``.
        input_tokens: Input tokens; None draws 1 to 8 per word of the prompt.
        rate: Output tokens a second.
        first_token: Seconds before the first token.
        jitter: Every wait is stretched by a factor in ``1 - jitter`` to
            ``1 + jitter``.
        chunk_most: Tokens in a chunk are drawn from 1 to this.
        text: The answer; None draws words.
        tool_calls: Tools to ask for in place of an answer.
        plans_tools: Where the request offers tools, ask for two or three of them
            first, then for ``delegate`` alone, then for none.
        status: An HTTP status of 400 or above is answered as an error, after
            ``first_token``, and costs no tokens.
        silent: Take the request and never answer.
    """

    tokens: int | None = None
    input_tokens: int | None = None
    rate: float = 70.0
    first_token: float = 0.15
    jitter: float = 0.3
    chunk_most: int = 8
    text: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    plans_tools: bool = False
    status: int = 200
    silent: bool = False

    def overridden(self, text: str) -> Script:
        """Return the script with the fields of a JSON object in place of its own.

        Raises:
            ValueError: It is not a JSON object, or names a field that is not one.
        """
        values = json.loads(text)
        if not isinstance(values, dict):
            raise ValueError("a script is a JSON object")  # noqa: TRY004  its value
        unknown = values.keys() - {entry.name for entry in fields(self)}
        if unknown:
            raise ValueError(f"a script has no field {min(unknown)!r}")
        if "tool_calls" in values:
            values["tool_calls"] = tuple(
                ToolCall(**entry) for entry in values["tool_calls"]
            )
        return replace(self, **values)


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens that are generated ``offset`` seconds after the request arrived."""

    offset: float
    tokens: int


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole answer, planned: texts go with chunks one to one."""

    chunks: tuple[Chunk, ...]
    texts: tuple[str, ...]
    tool_calls: tuple[ToolCall, ...]
    input_tokens: int

    @property
    def output_tokens(self) -> int:
        """Tokens of all chunks."""
        return sum(chunk.tokens for chunk in self.chunks)


def timeline(seed: int, script: Script, most: int | None = None) -> tuple[Chunk, ...]:
    """Return when which tokens are generated. ``most`` is ``max_tokens``."""
    rng = draw(seed, "timeline")
    ceiling = 64 if most is None else max(1, most)
    drawn = rng.randint(math.ceil(ceiling * 0.6), ceiling)
    left = drawn if script.tokens is None else script.tokens
    offset = script.first_token * rng.uniform(1 - script.jitter, 1 + script.jitter)
    chunks: list[Chunk] = []
    while left > 0:
        tokens = min(left, rng.randint(1, script.chunk_most))
        if chunks:
            stretch = rng.uniform(1 - script.jitter, 1 + script.jitter)
            offset += tokens / script.rate * stretch
        chunks.append(Chunk(offset, tokens))
        left -= tokens
    return tuple(chunks)


def compose(body: Mapping[str, Any], seed: int, script: Script) -> Reply:
    """Plan the answer to a chat completion request."""
    most = body.get("max_completion_tokens") or body.get("max_tokens")
    chunks = timeline(seed, script, most)
    messages: Sequence[Mapping[str, Any]] = body.get("messages", ())
    tool_calls = script.tool_calls or (
        _planned_tools(body, messages, seed) if script.plans_tools else ()
    )
    texts = ("",) * len(chunks) if tool_calls else _texts(seed, script, len(chunks))
    return Reply(chunks, texts, tool_calls, _input_tokens(messages, seed, script))


def planned_tools(seed: int, asked: int, offered: Sequence[str]) -> tuple[str, ...]:
    """Return the tools of planning round ``asked`` (0 is the first)."""
    others = [name for name in offered if name != DELEGATE]
    if asked == 0 and others:
        rng = draw(seed, "tools")
        return tuple(rng.sample(others, min(len(others), rng.randint(2, 3))))
    if asked <= 1 and DELEGATE in offered:
        return (DELEGATE,)
    return ()


def _planned_tools(
    body: Mapping[str, Any], messages: Sequence[Mapping[str, Any]], seed: int
) -> tuple[ToolCall, ...]:
    offered = [tool["function"]["name"] for tool in body.get("tools") or ()]
    asked = sum(1 for message in messages if message.get("tool_calls"))
    return tuple(
        ToolCall(name, {"topic": " ".join(draw(seed, name).choices(_WORDS, k=6))})
        for name in planned_tools(seed, asked, offered)
    )


def _texts(seed: int, script: Script, count: int) -> tuple[str, ...]:
    """Return ``count`` pieces of text whose length says nothing about tokens."""
    if count == 0:
        return ()
    if script.text is not None:
        size = math.ceil(len(script.text) / count)
        return tuple(script.text[i * size : (i + 1) * size] for i in range(count))
    rng = draw(seed, "text")
    return tuple(
        "".join(f"{rng.choice(_WORDS)} " for _ in range(rng.randint(1, 4)))
        for _ in range(count)
    )


def _input_tokens(
    messages: Sequence[Mapping[str, Any]], seed: int, script: Script
) -> int:
    if script.input_tokens is not None:
        return script.input_tokens
    rng = draw(seed, "input")
    words = sum(len(str(message.get("content") or "").split()) for message in messages)
    return sum(rng.randint(1, 8) for _ in range(max(1, words)))
