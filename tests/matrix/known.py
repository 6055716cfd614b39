"""What does not hold yet, by row and column, and why: strict, so it cannot go stale."""

from __future__ import annotations

from typing import Final

_HANGS = (
    "a refusal ends the library's background task without the end of its queue: "
    "stream_events() waits for ever (0 requests are made)"
)
KNOWN: Final = {
    ("openai-agents / genai-openai-agents", "refused, 0 requests"): _HANGS,
    ("openai-agents / genai-openai-agents + genai-openai", "refused, 0 requests"): (
        _HANGS
    ),
}
