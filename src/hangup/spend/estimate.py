"""How many tokens a text is, where nobody says: the estimators, and how good they are.

Two things are known of a stream that was cut before its usage came: the text, and how
many deltas it came in. A provider sends either one token in a delta or several.

- A token never holds two words, and of plain text hardly ever more than 16 bytes. So
  a delta of at most one word and 16 bytes is taken for **one token**, and any other
  for **several**, by its text: :data:`WORD_TOKENS` for each word, one for every
  :data:`LETTER_BYTES` of its letters, :data:`SIGN_TOKENS` for each sign; never fewer
  than its words.
- In a stream where more than one delta in eight held several, single words were not
  sent one token at a time either: there the longer ones count by their text too.

The numbers are fitted to the o200k vocabulary, and were measured on 40 deltas at a
time, cut out of real text. One token a delta: exact, within 2 of 40 in tables and rules
of dashes. One to eight tokens a delta: within 10 % on average for English, French and
German prose, documentation, Python and JSON, within 15 % for every sample of prose;
single samples of code and tables up to 25 % off, Markdown dense in signs 20 % low.
Chinese and Japanese are within 20 % where a delta holds six characters or more, and as
low as half where it holds two to five. With older vocabularies (cl100k) languages other
than English come out 10 % to 35 % too low. What rests on this is marked as estimated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

WORD_TOKENS = 0.53
"""Tokens of a word, whatever its length."""
LETTER_BYTES = 7.6
"""Bytes of letters that are one token more: long words are several."""
SIGN_TOKENS = 0.63
"""Tokens of a punctuation sign: two in a row are often one."""

SHORT_WORD = 8
"""Bytes of a word, with its blank, that is one token in every stream."""

_LONGEST_TOKEN = 16
_SEVERAL = 8  # one delta in so many holds several tokens: the stream is grouped
_WIDE_TOKENS = 0.7  # tokens of one character of three bytes or more (CJK, emoji)
# Tables for bytes.translate: what to blank out, and what to delete so that only the
# signs, or the lead bytes of longer characters, remain to be counted.
_SIGNS = bytes(c for c in range(0x21, 0x7F) if not chr(c).isalnum() and c != ord("_"))
_NO_SIGNS = bytes.maketrans(_SIGNS, b" " * len(_SIGNS))
_NOT_SIGNS = bytes(set(range(0x100)) - set(_SIGNS))
_NOT_WIDE = bytes(range(0xE0))
_NOT_TWO = bytes(range(0xC0)) + bytes(range(0xE0, 0x100))

_PER_MESSAGE = 4
"""Tokens around each message: its role and its delimiters."""
# What a tool was called with: JSON, whose keys and signs are tokens too.
_JSON = frozenset({"args", "input"})
# Not text: what is under these keys is media, or opaque to everybody but its provider.
_OPAQUE = frozenset(
    {
        "audio",
        "data",
        "encrypted_content",
        "file_data",
        "fileData",
        "id",
        "image_url",
        "inlineData",
        "inline_data",
        "signature",
        "thoughtSignature",
        "tool_call_id",
        "tool_use_id",
        "type",
        "url",
    }
)
_PROMPT = (
    "messages",
    "input",
    "instructions",
    "prompt",
    "system",
    "contents",
    "systemInstruction",
    "system_instruction",
)
_MOST_DEPTH = 40


class Tally:
    """Estimates the tokens of a stream from its deltas. Not thread-safe.

    Attributes:
        deltas: Deltas that held text: each is one token, or more.
        several: Those of them that held more than one token.
        more: Tokens beyond one for each delta, if every short word is one.
        more_grouped: The same, if words came grouped.
    """

    __slots__ = ("deltas", "more", "more_grouped", "several")

    def __init__(self) -> None:
        self.deltas: int = 0
        self.several: int = 0
        self.more: float = 0.0
        self.more_grouped: float = 0.0

    def add(self, text: bytes) -> None:
        """Count one delta of UTF-8 text, cut anywhere; an empty one is none.

        Of a short word nothing but ``deltas`` rises, and the meter knows that.
        """
        size = len(text)
        if size == 0:
            return
        self.deltas += 1
        words = text.split()
        if len(words) < 2 and size <= _LONGEST_TOKEN:  # noqa: PLR2004  two words
            if size > SHORT_WORD:
                self.more_grouped += max(0.0, _tokens(text) - 1)
            return
        # White space alone is one token, however long it is.
        if words:
            more = max(len(words), _tokens(text)) - 1
            self.several += 1
            self.more += more
            self.more_grouped += more

    @property
    def single(self) -> float:
        """The tokens, if every short word is one."""
        return self.deltas + self.more

    @property
    def grouped(self) -> float:
        """The tokens, if words came grouped."""
        return self.deltas + self.more_grouped

    @property
    def is_grouped(self) -> bool:
        """Whether this stream puts several tokens into a delta."""
        return self.several * _SEVERAL > self.deltas

    @property
    def tokens(self) -> float:
        """The estimate; at least 1 for each delta."""
        return self.grouped if self.is_grouped else self.single


def text_tokens(text: str) -> int:
    """Return an estimate for a text that is known as a whole; 0 for an empty one."""
    raw = text.encode("utf-8", "surrogatepass")
    return round(max(len(raw.split()), _tokens(raw)))


def _tokens(text: bytes) -> float:
    words = text.translate(_NO_SIGNS).split()
    signs = len(text.translate(None, _NOT_SIGNS))
    letters = len(b"".join(words))
    tokens = len(words) * WORD_TOKENS + signs * SIGN_TOKENS
    if not text.isascii():
        wide = len(text.translate(None, _NOT_WIDE))
        # Two-byte letters (Cyrillic, Greek) merge into tokens nearly as well as ASCII.
        letters -= 3 * wide + len(text.translate(None, _NOT_TWO)) // 2
        tokens += wide * _WIDE_TOKENS
    return tokens + max(0, letters) / LETTER_BYTES


def input_tokens(request: Mapping[str, object]) -> int | None:
    """Estimate the input of a request to any of the known providers.

    All texts of the prompt and the tools, and a few tokens around each message.
    Images, audio and files are not counted, nor is what the provider keeps itself
    (an earlier response, a cache by name): the estimate is low there.

    Returns:
        None when the request holds no prompt.
    """
    total = 0
    found = False
    for key in _PROMPT:
        value = request.get(key)
        if value:
            found = True
            total += _nested(value, 0)
            total += _PER_MESSAGE * (len(value) if isinstance(value, list) else 1)
    if not found:
        return None
    return total + _nested(request.get("tools"), 0, keys=True)


def _nested(value: object, depth: int, *, keys: bool = False) -> int:
    if isinstance(value, str):
        return text_tokens(value)
    if depth >= _MOST_DEPTH:
        return 0
    if isinstance(value, dict):
        return sum(
            _nested(part, depth + 1, keys=keys or key in _JSON) + (2 if keys else 0)
            for key, part in value.items()
            if keys or key not in _OPAQUE
        )
    if isinstance(value, list):
        return sum(_nested(part, depth + 1, keys=keys) for part in value)
    return 0
