"""How the model answers: a pure function of the request, a seed and a script.

The number of tokens, their rate and their chunks come from the seed alone, so a
call's duration is known before it is made (:mod:`hangup.demo.forecast` relies on
it). A text is as long as that many tokens are (:mod:`hangup.demo.prose`); in how many
chunks it comes tells nothing.
"""

from __future__ import annotations

import itertools
import json
import math
import operator
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING

from hangup.demo import prose
from hangup.demo.seeds import draw

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hangup.demo.asked import Asked

DELEGATE = "delegate"
"""The tool a scripted plan keeps for last: by then there is something to hand over."""
PER_MESSAGE = 4
"""Input tokens around every message."""
_TOKENS_AROUND_A_TOPIC = 7
"""A tool's name and the JSON around its one argument."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool the model asks for."""

    name: str
    arguments: Mapping[str, object] = field(default_factory=dict)

    @property
    def arguments_json(self) -> str:
        """The arguments as they are sent."""
        return json.dumps(dict(self.arguments))


@dataclass(frozen=True, slots=True)
class Script:
    """How requests are answered; every field has a plain default.

    Attributes:
        tokens: Output tokens; None draws them, up to the request's ``max_tokens``.
        input_tokens: Input tokens; None goes by the length of the prompt.
        rate: Output tokens a second.
        first_token: Seconds before the first token.
        jitter: Every wait is stretched by a factor in ``1 - jitter`` to
            ``1 + jitter``.
        chunk_most: Tokens in a chunk are drawn from 1 to this.
        text: The answer; None draws prose of as many tokens.
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
    """A whole answer, planned: texts and arguments go with chunks one to one.

    Attributes:
        chunks: When which tokens come.
        texts: The answer's text, chunk by chunk.
        tool_calls: The tools that are asked for.
        arguments: For each chunk the pieces of arguments in it, each with the place
            of its tool call. A call's name comes with its first piece.
        input_tokens: Tokens of the prompt.
    """

    chunks: tuple[Chunk, ...]
    texts: tuple[str, ...]
    tool_calls: tuple[ToolCall, ...]
    arguments: tuple[tuple[tuple[int, str], ...], ...]
    input_tokens: int

    @property
    def output_tokens(self) -> int:
        """Tokens of all chunks."""
        return sum(chunk.tokens for chunk in self.chunks)

    def begins(self, index: int, place: int) -> bool:
        """Return whether chunk ``index`` has the first piece of a tool call."""
        return not any(
            place == own for own, _ in itertools.chain(*self.arguments[:index])
        )


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


def compose(asked: Asked, seed: int, script: Script) -> Reply:
    """Plan the answer to a request."""
    chunks = timeline(seed, script, asked.most)
    total = sum(chunk.tokens for chunk in chunks)
    tool_calls = script.tool_calls or (
        _planned_tools(asked, seed, total) if script.plans_tools else ()
    )
    if tool_calls:
        texts: tuple[str, ...] = ("",) * len(chunks)
    elif script.text is not None:
        texts = _cut(script.text, chunks)
    else:
        texts = _grouped(prose.tokens(seed, total), chunks)
    tokens_in = script.input_tokens
    if tokens_in is None:
        tokens_in = PER_MESSAGE * len(asked.texts) + prose.counted(asked.texts, seed)
    arguments = _arguments(tool_calls, chunks)
    return Reply(chunks, texts, tool_calls, arguments, tokens_in)


def planned_tools(seed: int, asked: int, offered: Sequence[str]) -> tuple[str, ...]:
    """Return the tools of planning round ``asked`` (0 is the first)."""
    others = [name for name in offered if name != DELEGATE]
    if asked == 0 and others:
        rng = draw(seed, "tools")
        return tuple(rng.sample(others, min(len(others), rng.randint(2, 3))))
    if asked <= 1 and DELEGATE in offered:
        return (DELEGATE,)
    return ()


def _planned_tools(asked: Asked, seed: int, total: int) -> tuple[ToolCall, ...]:
    """Return tool calls whose arguments are about as long as ``total`` tokens."""
    names = planned_tools(seed, asked.rounds, asked.tools)
    if not names:
        return ()
    each = max(1, total // len(names) - _TOKENS_AROUND_A_TOPIC)
    return tuple(
        ToolCall(name, {"topic": "".join(prose.tokens(seed + place, each)).strip()})
        for place, name in enumerate(names)
    )


def _grouped(tokens: Sequence[str], chunks: Sequence[Chunk]) -> tuple[str, ...]:
    """Return the text of each chunk: as many of the tokens as it holds."""
    stream = iter(tokens)
    return tuple("".join(itertools.islice(stream, chunk.tokens)) for chunk in chunks)


def _cut(text: str, chunks: Sequence[Chunk]) -> tuple[str, ...]:
    """Return a given text cut in proportion to the chunks' tokens."""
    if not chunks:
        return ()
    ends = list(itertools.accumulate(chunk.tokens for chunk in chunks))
    marks = [0, *(len(text) * end // ends[-1] for end in ends)]
    return tuple(text[a:b] for a, b in itertools.pairwise(marks))


def _arguments(
    calls: Sequence[ToolCall], chunks: Sequence[Chunk]
) -> tuple[tuple[tuple[int, str], ...], ...]:
    """Cut the arguments of all calls, one after the other, over the chunks."""
    whole = [call.arguments_json for call in calls]
    places = [place for place, text in enumerate(whole) for _ in text]
    pieces = []
    begin = 0
    for piece in _cut("".join(whole), chunks):
        owners = itertools.groupby(
            zip(places[begin : begin + len(piece)], piece, strict=True),
            key=operator.itemgetter(0),
        )
        pieces.append(
            tuple((place, "".join(char for _, char in part)) for place, part in owners)
        )
        begin += len(piece)
    return tuple(pieces)
