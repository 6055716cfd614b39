"""Read the next delta of a stream without parsing it: it looks like the last one.

The events of a stream differ in little but the text they bring. An event that was
parsed and found to hold one delta and nothing else leaves a template: its bytes, with
slots for what may differ. An event that fits a template byte by byte means the same,
so its text is what stands in the slot. Whatever does not fit is parsed.
"""

from __future__ import annotations

import json
from typing import Generic, TypeVar

from hangup.spend.estimate import SHORT_WORD

# Templates kept at a time: text, thoughts and arguments may alternate.
_MOST_TEMPLATES = 4
# Learning costs about one parse: where events never look alike it must stay rare.
_FREE_LESSONS = 16
_EVENTS_A_LESSON = 16
# Beside the text: what is known to change from event to event. OpenAI numbers the
# events of a response and pads them, so that their length does not tell the text.
_NUMBERS = (b'"sequence_number":',)
_PADDINGS = (b'"obfuscation":', b'"p":')
# As numbers: to look for one byte in bytes costs a tenth of looking for bytes in bytes,
# which takes the needle for a number first, and fails, every time.
_QUOTE, _LINE_FEED, _BACKSLASH = b'"\n\\'


class Template:
    """The bytes of an event around its text. Immutable."""

    __slots__ = (
        "_around",
        "_begin",
        "_end",
        "_ended",
        "_last",
        "_middle",
        "_start",
        "_twice",
    )

    def __init__(self, pieces: list[bytes], text_slot: int) -> None:
        """Give the pieces between the slots, and which slot is the text's."""
        self._start = pieces[0]
        self._last = pieces[-1]
        # Of each slot but the last the piece behind it, the first byte of that, and
        # whether it is the text's.
        self._middle = tuple(
            (piece, piece[:1], slot == text_slot)
            for slot, piece in enumerate(pieces[1:-1])
        )
        self._ended = self._last + b"\n\n"
        self._begin = len(self._start)
        self._end = -len(self._ended)
        self._around = len(self._start) + len(self._ended)
        self._twice = 2 * self._around

    def match(self, block: bytes) -> bytes | None:
        """Return the text of an event that fits, in UTF-8; None for any other."""
        start, last = self._start, self._last
        if (
            not block.startswith(start)
            or not block.endswith(last)
            or len(block) < self._around - 2
        ):
            return None
        if self._middle:
            return self._slots(block, len(block) - len(last))
        text = block[len(start) : len(block) - len(last)]
        # A quote would end the string early, and a line end the line.
        if _QUOTE in text or _LINE_FEED in text or _BACKSLASH in text:
            return _unescaped(text)
        return text

    def is_word(self, data: bytes) -> bool:
        """Whether ``data`` is one event that fits, and its text is one short word.

        Most are. A word that ends in a blank is none here, nor is one with a sign in
        it: what is not known to be a word is left to :meth:`match_all`, which would
        find the same in more steps. ``data`` as there.
        """
        if not data.startswith(self._start) or not data.endswith(self._ended):
            return False
        inside = data[self._begin : self._end]
        return len(inside) <= SHORT_WORD and inside.removeprefix(b" ").isalpha()

    def match_all(self, data: bytes) -> list[bytes] | None:
        """Return the texts of events in a row, if ``data`` is nothing but such.

        ``data`` must begin where an event does, and hold the empty lines behind them.
        """
        if (
            not data.startswith(self._start)
            or not data.endswith(self._ended)
            or len(data) < self._around
        ):
            return None
        if self._middle:
            text = self._slots(data, len(data) - len(self._ended))
            return None if text is None else [text]
        inside = data[self._begin : self._end]
        texts = [inside]
        # Splitting at a long separator is dear even where it cannot be.
        if len(data) > self._twice:
            texts = inside.split(self._ended + self._start)
            inside = b"".join(texts)
        if _QUOTE in inside or _LINE_FEED in inside or _BACKSLASH in inside:
            return _all_unescaped(texts)
        return texts

    def _slots(self, block: bytes, end: int) -> bytes | None:
        at = len(self._start)
        text = None
        for piece, mark, is_text in self._middle:
            # The first quote ends a string, the first comma or brace a number: to
            # search for one byte is far cheaper than for the piece.
            found = block.find(mark, at, end)
            if found < 0 or not block.startswith(piece, found):
                return None
            if is_text:
                text = block[at:found]
            at = found + len(piece)
        value = block[at:end]
        if text is None:
            text = value  # the text's is the last slot
        elif _QUOTE in value or _LINE_FEED in value:
            return None
        if _QUOTE in text or _LINE_FEED in text or _BACKSLASH in text:
            return _unescaped(text)
        return text


def _all_unescaped(texts: list[bytes]) -> list[bytes] | None:
    found = []
    for raw in texts:
        text = _unescaped(raw)
        if text is None:
            return None
        found.append(text)
    return found


def _unescaped(text: bytes) -> bytes | None:
    """Decode a JSON string's inside; None when it is not the inside of one string."""
    try:
        value = json.loads(b'"%b"' % text)
    except ValueError:
        return None
    return value.encode("utf-8", "surrogatepass") if isinstance(value, str) else None


def learn(block: bytes, key: bytes, text: str) -> Template | None:
    """Make a template of an event whose only delta is ``text``, under ``key``.

    Returns:
        None where the event does not tell for certain which of its bytes are the
        text: the key stands there twice, or the text is escaped.
    """
    found = _string(block, b'"%b":' % key)
    if found is None or block[found[0] : found[1]] != text.encode("utf-8", "replace"):
        return None
    slots = [found]
    for name in _PADDINGS:
        slots += filter(None, [_string(block, name)])
    for name in _NUMBERS:
        slots += filter(None, [_number(block, name)])
    slots.sort()
    pieces, at = [], 0
    for start, end in slots:
        pieces.append(block[at:start])
        at = end
    pieces.append(block[at:])
    # A slot must end where the next piece begins for the first time.
    return Template(pieces, slots.index(found)) if all(pieces) else None


def _behind(block: bytes, name: bytes) -> int | None:
    """Return where the value of a key begins that stands there exactly once."""
    at = block.find(name)
    if at < 0 or block.find(name, at + 1) >= 0:
        return None
    at += len(name)
    return at + (block[at : at + 1] == b" ")


def _string(block: bytes, name: bytes) -> tuple[int, int] | None:
    start = _behind(block, name)
    if start is None or block[start : start + 1] != b'"':
        return None
    end = block.find(b'"', start + 1)
    if end < 0 or _BACKSLASH in block[start:end]:
        return None
    return start + 1, end


def _number(block: bytes, name: bytes) -> tuple[int, int] | None:
    start = _behind(block, name)
    if start is None:
        return None
    end = start
    while block[end : end + 1].isdigit():
        end += 1
    return (start, end) if end > start else None


T = TypeVar("T")


class Templates(Generic[T]):
    """The latest few templates, and what the text of each is. Not thread-safe.

    Attributes:
        kept: Templates and their kinds, the newest first; not to be changed.
    """

    __slots__ = ("_lessons", "kept")

    def __init__(self) -> None:
        self.kept: list[tuple[Template, T]] = []
        self._lessons = 0

    def learn(self, block: bytes, key: bytes, text: str, kind: T, events: int) -> None:
        """Learn from an event, if it is time for a lesson.

        Args:
            block: The event.
            key: The JSON key of its text.
            text: The text.
            kind: What the text is.
            events: How many events there have been.
        """
        if self._lessons >= _FREE_LESSONS + events // _EVENTS_A_LESSON:
            return
        self._lessons += 1
        template = learn(block, key, text)
        if template is not None:
            self.kept.insert(0, (template, kind))
            del self.kept[_MOST_TEMPLATES:]
