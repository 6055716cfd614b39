"""How the model server answers, and the text it answers with.

About four characters a token, one word a token. The counts of a script are what the
provider would bill; its dialects say them in their own conventions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_WORDS = ("the", "run", "was", "cut", "and", "all", "of", "it", "came", "back", "red")


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool that an answer asks for; the arguments are JSON."""

    id: str
    name: str
    arguments: str = "{}"


@dataclass(frozen=True, slots=True)
class Script:
    """One answer.

    Attributes:
        tokens: Output tokens, reasoning included.
        input: Input tokens, caches included.
        chunk: Tokens in one chunk of a stream; the last one may have fewer.
        rate: Output tokens a second.
        first: Seconds before the first token.
        cache_read: The part of ``input`` that a cache answered.
        cache_write: The part of ``input`` that was written to a cache.
        reasoning: The part of ``tokens`` that is thought and never shown.
        hold: After so many visible tokens generate no more, and wait for the caller to
            go; None never waits.
        tool: Name of a tool to call first, where the request offers it.
        calls: Tools that this answer calls, in place of text.
        refusal: The request is answered with 400 and this; nothing is generated.
    """

    tokens: int = 24
    input: int = 56
    chunk: int = 1
    rate: float = math.inf
    first: float = 0.0
    cache_read: int = 0
    cache_write: int = 0
    reasoning: int = 0
    hold: int | None = None
    tool: str | None = None
    calls: tuple[ToolCall, ...] = ()
    refusal: str = ""

    @property
    def visible(self) -> int:
        """Output tokens that are text."""
        return self.tokens - self.reasoning

    def pieces(self) -> Iterator[tuple[str, int]]:
        """Yield the text of each chunk and how many tokens it is."""
        for start in range(0, self.visible, self.chunk):
            count = min(self.chunk, self.visible - start)
            yield text(start, count), count

    @property
    def text(self) -> str:
        """The whole text."""
        return text(0, self.visible)


def text(start: int, count: int) -> str:
    """Return the text of ``count`` tokens, beginning with token ``start``."""
    words = (_WORDS[i % len(_WORDS)] for i in range(start, start + count))
    return "".join(f"{word} " for word in words)
