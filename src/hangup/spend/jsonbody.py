"""Take a JSON response apart while it arrives: one object, or an array of them.

Gemini streams an array unless it is asked for server-sent events; everything else
that is not a stream is one object, and is handed out when it ends.
"""

from __future__ import annotations

from hangup.spend.sse import MOST_BYTES

_OPENING = frozenset(b"{[")
_CLOSING = frozenset(b"}]")


class JsonSplitter:
    """Cuts a JSON body into the elements of its array, or its one object.

    Holds at most one of them; never raises, whatever the bytes are: what is no JSON
    comes out as it is or not at all. Not thread-safe. What comes out does not depend
    on where the chunks were cut.

    Args:
        most: Bytes of an element that is kept. A longer one is dropped and counted.

    Attributes:
        between: As in SseSplitter, and never claimed here.
        dropped: Elements that were too long to keep.
    """

    __slots__ = (
        "_depth",
        "_escaped",
        "_is_array",
        "_most",
        "_pending",
        "_quoted",
        "_skipping",
        "between",
        "dropped",
    )

    def __init__(self, most: int = MOST_BYTES) -> None:
        self._most = most
        self._pending = bytearray()
        self._is_array: bool | None = None  # not known before the first byte
        self._depth = 0  # inside the current element
        self._quoted = False  # inside a string
        self._escaped = False  # behind a backslash inside a string
        self._skipping = False
        self.between: bool = False
        self.dropped: int = 0

    @property
    def pending(self) -> int:
        """Bytes held of an element that is not complete."""
        return len(self._pending)

    def feed(self, data: bytes) -> list[bytes]:
        """Return the elements that ``data`` completes; an object only at the end."""
        if self._is_array is None:
            data = data.lstrip()
            if not data:
                return []
            self._is_array = data.startswith(b"[")
            if self._is_array:
                data = data[1:]
        if self._is_array:
            return self._elements(data)
        self._keep(data)
        return []

    def close(self) -> list[bytes]:
        """Return the object, if it is one; an array has nothing left to give."""
        rest = bytes(self._pending)
        self._pending.clear()
        return [rest] if rest and not self._is_array else []

    def _elements(self, data: bytes) -> list[bytes]:
        found = []
        start = at = 0
        while at < len(data):
            if self._quoted:
                at = self._through_string(data, at)
                continue
            quote = data.find(b'"', at)
            outside = data[at:] if quote < 0 else data[at:quote]
            # Only where the element may end is it worth looking at every byte.
            closing = outside.count(b"}") + outside.count(b"]")
            if self._depth and self._depth > closing:
                opening = outside.count(b"{") + outside.count(b"[")
                self._depth += opening - closing
            else:
                for index, byte in enumerate(outside, at):
                    if byte in _OPENING:
                        if not self._depth:
                            start = index
                        self._depth += 1
                    elif byte in _CLOSING and self._depth:
                        self._depth -= 1
                        if not self._depth:
                            self._keep(data[start : index + 1])
                            found += self._taken()
            self._quoted = quote >= 0
            at = len(data) if quote < 0 else quote + 1
        if self._depth:
            self._keep(data[start:])
        return found

    def _through_string(self, data: bytes, at: int) -> int:
        """Return where the string that ``at`` lies in ends, or the chunk does."""
        while at < len(data):
            if self._escaped:
                self._escaped = False
                at += 1
                continue
            quote = data.find(b'"', at)
            end = len(data) if quote < 0 else quote
            escape = data.find(b"\\", at, end)
            if escape >= 0:
                self._escaped = True
                at = escape + 1
            elif quote >= 0:
                self._quoted = False
                return quote + 1
            else:
                return end
        return at

    def _keep(self, data: bytes) -> None:
        if self._skipping:
            return
        if len(self._pending) + len(data) > self._most:
            self._skipping = True
            self.dropped += 1
            self._pending.clear()
            return
        self._pending += data

    def _taken(self) -> list[bytes]:
        element = bytes(self._pending)
        self._pending.clear()
        if self._skipping:
            self._skipping = False
            return []
        return [element]
