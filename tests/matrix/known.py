"""What does not hold yet, by row and column, and why: strict, so it cannot go stale."""

from __future__ import annotations

from typing import Final

_NOT_CURRENT = (
    "Traceloop's span is never current, so the native one does not stand in it: "
    "(112, 48) for (56, 24)"
)
_HANGS = (
    "a refusal ends the library's background task without the end of its queue: "
    "stream_events() waits for ever (0 requests are made)"
)
KNOWN: Final = {
    (
        "anthropic / anthropic native + Traceloop anthropic",
        "whole call",
    ): _NOT_CURRENT,
    ("openai-agents / genai-openai-agents", "refused, 0 requests"): _HANGS,
    ("openai-agents / genai-openai-agents + genai-openai", "refused, 0 requests"): (
        _HANGS
    ),
}
