"""What does not hold yet, by row and column, and why: strict, so it cannot go stale."""

from __future__ import annotations

from typing import Final

_PLACEHOLDER = (
    "the span of a cut stream says 1 token out, the placeholder of message_start, and "
    "that wins over the 40 that were metered"
)
_NOT_CURRENT = (
    "Traceloop's span is never current, so the native one does not stand in it: "
    "(112, 48) for (56, 24)"
)
_HANGS = (
    "a refusal ends the library's background task without the end of its queue: "
    "stream_events() waits for ever (0 requests are made)"
)
_UNREAD = (
    "the answer that came in full is closed unread, so (14, 0) estimated for (56, 100)"
)
_NOT_CLOSED = (
    "what a thread has left unread is not closed when the run stops, only by a garbage "
    "collection: the server goes on to 100 tokens, (0, 0) are counted"
)
KNOWN: Final = {
    ("anthropic / genai-anthropic", "stream cut"): _PLACEHOLDER,
    ("anthropic / anthropic native + genai-anthropic", "stream cut"): _PLACEHOLDER,
    (
        "anthropic / anthropic native + Traceloop anthropic",
        "whole call",
    ): _NOT_CURRENT,
    ("openai-agents / genai-openai-agents", "refused, 0 requests"): _HANGS,
    ("openai-agents / genai-openai-agents + genai-openai", "refused, 0 requests"): (
        _HANGS
    ),
    ("openai chat, in threads / genai-openai", "stream cut"): _NOT_CLOSED,
    ("openai chat, in threads / genai-openai", "whole call cut"): _UNREAD,
}
