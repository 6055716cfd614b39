"""What the providers say about a call as it goes, one reader per dialect.

=============== =================================== ==============================
dialect         where usage comes                   what its numbers mean
=============== =================================== ==============================
OpenAI chat     once, in the last chunk, if asked   reasoning and cached are subsets
                (some servers: in every chunk)      (in every chunk: cumulative)
OpenAI          once, with the final response       reasoning and cached are subsets
Responses
Anthropic       input in ``message_start``, whose   cumulative; caches are beside
                output is a placeholder; output     ``input_tokens``, not in it
                in ``message_delta``
Gemini          in every chunk                      cumulative; cached is a subset,
                                                    thoughts and tool use are beside
=============== =================================== ==============================

A reader takes one parsed event or response, writes what it says into :class:`Known`
and returns the text it brings. It never raises, whatever the event holds.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_MOST_TOKENS = 2**53 - 1  # see hangup.spend.usage: more is a broken report


class Provider(StrEnum):
    """The dialect that a model endpoint speaks, whoever runs it."""

    OPENAI_CHAT = "openai.chat"
    OPENAI_RESPONSES = "openai.responses"
    ANTHROPIC = "anthropic"
    GEMINI = "gemini"


class Kind(StrEnum):
    """What a piece of generated text is."""

    TEXT = "text"
    JSON = "json"
    """Arguments of a tool."""
    THOUGHT = "thought"


class Delta(NamedTuple):
    """A piece of generated text, and the key it stood under."""

    kind: Kind
    key: str
    text: str


@dataclass(slots=True)
class Known:
    """What the provider has said so far. None: it has not; 0: it said zero.

    Attributes:
        model: The model that answers.
        response_id: The response's id.
        input: Input tokens, caches included.
        output: Output tokens so far, reasoning included.
        cache_read: The part of the input that a cache answered.
        cache_write: The part of the input that was written to a cache.
        cache_write_1h: The part of that which is kept for an hour.
        reasoning: The part of the output that was reasoning.
        least: Output tokens at least, where a number is only a placeholder.
        finished: The provider said that the answer is over.
        raw: The provider's own account of the usage, as it came last.
        news: Set whenever something of the above was said (again).
    """

    model: str | None = None
    response_id: str | None = None
    input: int | None = None
    output: int | None = None
    cache_read: int | None = None
    cache_write: int | None = None
    cache_write_1h: int | None = None
    reasoning: int | None = None
    least: int | None = None
    raw: dict[str, object] | None = None
    finished: bool = False
    news: bool = False
    _uncached: int | None = None

    def name(self, model: object, response_id: object) -> None:
        """Take the names that an event repeats."""
        if isinstance(model, str) and model and model != self.model:
            self.model = model
            self.news = True
        if isinstance(response_id, str) and response_id:
            self.response_id = response_id

    def finish(self) -> None:
        """The provider said that it is done."""
        self.finished = self.news = True


def _chat(event: dict[str, object], known: Known) -> list[Delta]:
    known.name(event.get("model"), event.get("id"))
    deltas: list[Delta] = []
    usage = event.get("usage")
    for choice in _dicts(event.get("choices")):
        for part in ("delta", "message"):
            message = choice.get(part)
            if isinstance(message, dict):
                deltas += _chat_message(message)
        if choice.get("finish_reason"):
            known.finish()
        usage = usage or choice.get("usage")
    usage = usage or _dict(event.get("x_groq")).get("usage")
    if isinstance(usage, dict):
        _openai_usage(usage, known, "prompt", "completion")
    return deltas


def _chat_message(message: dict[str, object]) -> Iterator[Delta]:
    yield from _texts("content", message.get("content"))
    for key in ("reasoning_content", "reasoning"):
        thought = message.get(key)
        if isinstance(thought, str) and thought:
            yield Delta(Kind.THOUGHT, key, thought)
            break
    yield from _texts("refusal", message.get("refusal"))
    calls = [_dict(c.get("function")) for c in _dicts(message.get("tool_calls"))]
    for call in (*calls, _dict(message.get("function_call"))):
        for key in ("name", "arguments"):
            yield from _texts(key, call.get(key), Kind.JSON)


def _openai_usage(usage: dict[str, object], known: Known, into: str, out: str) -> None:
    known.raw = usage
    known.news = True
    tokens_in = _count(usage.get(f"{into}_tokens"))
    tokens_out = _count(usage.get(f"{out}_tokens"))
    details_in = _dict(usage.get(f"{into}_tokens_details"))
    cached = _count(details_in.get("cached_tokens"))
    if cached is None:
        cached = _count(usage.get("prompt_cache_hit_tokens"))
    details = _dict(usage.get(f"{out}_tokens_details"))
    reasoning = _count(details.get("reasoning_tokens"))
    total = _count(usage.get("total_tokens"))
    if tokens_out is not None and reasoning:
        # Some servers count reasoning beside the output; their total gives it away.
        beside = (tokens_in or 0) + tokens_out + reasoning
        if reasoning > tokens_out or total == beside:
            tokens_out += reasoning
    known.input = _last(tokens_in, known.input)
    known.output = _last(tokens_out, known.output)
    known.cache_read = _last(cached, known.cache_read)
    known.reasoning = _last(reasoning, known.reasoning)
    written = _count(details_in.get("cache_write_tokens"))
    known.cache_write = _last(written, known.cache_write)


def _responses(event: dict[str, object], known: Known) -> list[Delta]:
    kind = event.get("type")
    if not isinstance(kind, str):
        return _response(event, known, whole=True)
    if kind.endswith(".delta"):
        delta = event.get("delta")
        if not isinstance(delta, str) or "audio.delta" in kind:
            return []
        what = Kind.TEXT
        if "reasoning" in kind:
            what = Kind.THOUGHT
        elif "arguments" in kind or "input" in kind:
            what = Kind.JSON
        return [Delta(what, "delta", delta)] if delta else []
    response = event.get("response")
    if isinstance(response, dict):
        return _response(response, known, whole=False)
    return []


def _response(response: dict[str, object], known: Known, *, whole: bool) -> list[Delta]:
    known.name(response.get("model"), response.get("id"))
    usage = response.get("usage")
    if isinstance(usage, dict):
        _openai_usage(usage, known, "input", "output")
    if response.get("status") in {"completed", "incomplete", "failed", "cancelled"}:
        known.finish()
    if not whole:
        return []  # its text has come in deltas before
    deltas: list[Delta] = []
    for item in _dicts(response.get("output")):
        deltas += _texts("text", item.get("content"))
        for key in ("name", "arguments", "input"):
            deltas += _texts(key, item.get(key), Kind.JSON)
    return deltas


def _anthropic(event: dict[str, object], known: Known) -> list[Delta]:
    kind = event.get("type")
    if kind == "content_block_delta":
        return list(_block(_dict(event.get("delta"))))
    if kind == "content_block_start":
        return list(_block(_dict(event.get("content_block"))))
    if kind == "message_start":
        message = _dict(event.get("message"))
        known.name(message.get("model"), message.get("id"))
        usage = _dict(message.get("usage"))
        _anthropic_input(usage, known)
        known.least = _last(_count(usage.get("output_tokens")), known.least)
    elif kind == "message_delta":
        usage = _dict(event.get("usage"))
        _anthropic_input(usage, known)
        known.output = _last(_count(usage.get("output_tokens")), known.output)
    elif kind == "message_stop":
        known.finish()
    elif kind == "message":
        known.name(event.get("model"), event.get("id"))
        usage = _dict(event.get("usage"))
        _anthropic_input(usage, known)
        known.output = _last(_count(usage.get("output_tokens")), known.output)
        known.finish()
        return [d for block in _dicts(event.get("content")) for d in _block(block)]
    return []


def _block(block: dict[str, object]) -> Iterator[Delta]:
    yield from _texts("text", block.get("text"))
    yield from _texts("thinking", block.get("thinking"), Kind.THOUGHT)
    yield from _texts("partial_json", block.get("partial_json"), Kind.JSON)
    if block.get("type") in {"tool_use", "server_tool_use", "mcp_tool_use"}:
        yield from _texts("name", block.get("name"), Kind.JSON)
        if block.get("input"):
            yield Delta(Kind.JSON, "input", str(block["input"]))


def _anthropic_input(usage: dict[str, object], known: Known) -> None:
    known.news = True
    known.raw = usage if known.raw is None else known.raw | usage
    thought = _dict(usage.get("output_tokens_details")).get("thinking_tokens")
    known.reasoning = _last(_count(thought), known.reasoning)
    known._uncached = _last(_count(usage.get("input_tokens")), known._uncached)  # noqa: SLF001  its own module
    read = _count(usage.get("cache_read_input_tokens"))
    write = _count(usage.get("cache_creation_input_tokens"))
    known.cache_read = _last(read, known.cache_read)
    known.cache_write = _last(write, known.cache_write)
    for_long = _dict(usage.get("cache_creation")).get("ephemeral_1h_input_tokens")
    known.cache_write_1h = _last(_count(for_long), known.cache_write_1h)
    parts = (known._uncached, known.cache_read, known.cache_write)  # noqa: SLF001
    if any(part is not None for part in parts):
        known.input = sum(part or 0 for part in parts)


def _gemini(event: dict[str, object], known: Known) -> list[Delta]:
    known.name(event.get("modelVersion"), event.get("responseId"))
    deltas: list[Delta] = []
    for candidate in _dicts(event.get("candidates")):
        for part in _dicts(_dict(candidate.get("content")).get("parts")):
            kind = Kind.THOUGHT if part.get("thought") is True else Kind.TEXT
            deltas += _texts("text", part.get("text"), kind)
            call = _dict(part.get("functionCall"))
            deltas += _texts("name", call.get("name"), Kind.JSON)
            if call.get("args"):
                deltas.append(Delta(Kind.JSON, "args", str(call["args"])))
        if candidate.get("finishReason"):
            known.finish()
    usage = event.get("usageMetadata")
    if isinstance(usage, dict):
        known.news = True
        thoughts = _count(usage.get("thoughtsTokenCount"))
        prompt = _count(usage.get("promptTokenCount"))
        if prompt is not None:
            known.input = prompt + (_count(usage.get("toolUsePromptTokenCount")) or 0)
        known.reasoning = _last(thoughts, known.reasoning)
        cached = _count(usage.get("cachedContentTokenCount"))
        known.cache_read = _last(cached, known.cache_read)
        output = _count(usage.get("candidatesTokenCount"))
        if output is not None:
            known.output = output + (known.reasoning or 0)
        elif known.reasoning and known.output is None:
            known.least = known.reasoning
    return deltas


READERS: dict[Provider, Callable[[dict[str, object], Known], list[Delta]]] = {
    Provider.OPENAI_CHAT: _chat,
    Provider.OPENAI_RESPONSES: _responses,
    Provider.ANTHROPIC: _anthropic,
    Provider.GEMINI: _gemini,
}


def _texts(key: str, value: object, kind: Kind = Kind.TEXT) -> Iterator[Delta]:
    """Yield a text, or the texts of a list of content parts."""
    if isinstance(value, str):
        if value:
            yield Delta(kind, key, value)
        return
    for part in _dicts(value):
        if part.get("type") == "thinking":
            yield from _texts("text", part.get("thinking"), Kind.THOUGHT)
        else:
            yield from _texts("text", part.get("text") or part.get("refusal"), kind)


def _dict(value: object) -> dict[str, object]:
    return value if isinstance(value, dict) else {}


def _dicts(value: object) -> list[dict[str, object]]:
    if not isinstance(value, list):
        return []
    return [part for part in value if isinstance(part, dict)]


def _count(value: object) -> int | None:
    if type(value) is not int or not 0 <= value <= _MOST_TOKENS:
        return None
    return value


def _last(said: int | None, before: int | None) -> int | None:
    """Return the newest number; a field that is left out takes nothing back."""
    return before if said is None else said
