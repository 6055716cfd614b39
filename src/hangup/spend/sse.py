"""Split a stream of server-sent events into its events, whatever the chunks are.

The format is that of the HTML standard, "Server-sent events": lines end in CR, LF or
CRLF, an empty line ends an event, ``data`` lines are joined, comments are skipped.

Written for a meter that most events mean nothing to: a chunk is split by the C
functions of ``bytes``, an event is handed out as the bytes it came in, and nothing is
decoded before somebody asks (:func:`event_data`).
"""

from __future__ import annotations

MOST_BYTES = 4 * 1024 * 1024
"""How long one event may be before it is dropped. The longest that matter repeat a
whole answer (``response.completed``); an image in one may be longer and is no loss."""

_BOM = b"\xef\xbb\xbf"
# As numbers: ten times as fast to look for as bytes of one byte.
_CR, _LF = b"\r\n"


class SseSplitter:
    """Cuts raw bytes into events. Holds at most one event; never raises.

    Not thread-safe: one stream, one reader at a time. What comes out does not depend
    on where the chunks were cut, also not inside a character, a line or a CRLF.

    Args:
        most: Bytes of an event that is kept. A longer one is dropped whole and
            counted, and the stream goes on behind it.

    Attributes:
        between: Whether the next byte begins an event, whatever came before it.
        dropped: Events that were too long to keep.
    """

    __slots__ = (
        "_after_cr",
        "_first",
        "_most",
        "_pending",
        "_skipping",
        "between",
        "dropped",
    )

    def __init__(self, most: int = MOST_BYTES) -> None:
        self._most = most
        self._pending = bytearray()
        self._skipping = False  # inside an event that was too long
        self._after_cr = False  # a chunk ended in CR: an LF next belongs to it
        self._first = True
        self.between: bool = False
        self.dropped: int = 0

    @property
    def pending(self) -> int:
        """Bytes held of an event that is not complete."""
        return len(self._pending)

    def feed(self, data: bytes) -> list[bytes]:
        """Return the events that ``data`` completes.

        Each is its lines, ended by LF and without the empty line behind them, for
        :func:`event_data` and :func:`event_name`. Many carry no data at all.
        """
        blocks = self._blocks(data)
        self.between = not (
            self._pending or self._skipping or self._after_cr or self._first
        )
        return blocks

    def _blocks(self, data: bytes) -> list[bytes]:
        # A raw CR cannot stand inside JSON, so this is one search in nearly all cases.
        if self._after_cr or _CR in data:
            data = self._with_line_feeds(data)
        if self._skipping or self._pending:
            data = self._continued(data)
        if not data:
            return []
        blocks = data.split(b"\n\n")
        rest = blocks.pop()
        if rest:
            self._pending += rest.lstrip(b"\n")
            self._bound()
        # More empty lines than one make blocks that are none, or begin with one.
        spare = data.startswith(b"\n") or data.find(b"\n\n\n") >= 0
        if spare or self._first or len(data) > self._most:
            return self._sound(blocks)
        return blocks

    def close(self) -> list[bytes]:
        """Return what is left as an event: clients differ on whether it is one."""
        rest = bytes(self._pending).strip(b"\n")
        self._pending.clear()
        return self._sound([rest]) if rest else []

    def _with_line_feeds(self, data: bytes) -> bytes:
        if self._after_cr and data.startswith(b"\n"):
            data = data[1:]
            self._after_cr = False
            if not data:
                return data
        if data:
            self._after_cr = data.endswith(b"\r")
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _continued(self, data: bytes) -> bytes:
        """Return the bytes to split: what is pending with its end, or nothing yet."""
        pending = self._pending
        # Searched from the byte before: an empty line may lie across two chunks.
        start = max(0, len(pending) - 1)
        pending += data
        end = pending.find(b"\n\n", start)
        if end < 0:
            self._bound()
            return b""
        if self._skipping:
            self._skipping = False
            del pending[: end + 2]
        data = bytes(pending)
        pending.clear()
        return data

    def _bound(self) -> None:
        pending = self._pending
        newline = pending.endswith(b"\n")
        if not self._skipping and len(pending) - newline > self._most:
            self._skipping = True
            self.dropped += 1
        if self._skipping:
            pending[:] = b"\n" if newline else b""

    def _sound(self, blocks: list[bytes]) -> list[bytes]:
        """Return the blocks that are events, without a mark before the first."""
        if self._first and blocks:
            self._first = False
            blocks[0] = blocks[0].removeprefix(_BOM)
        blocks = [block.strip(b"\n") for block in blocks]
        kept = [block for block in blocks if block and len(block) <= self._most]
        self.dropped += sum(len(block) > self._most for block in blocks)
        return kept


def event_data(block: bytes) -> bytes:
    """Return the data of an event, its lines joined by LF; empty when it has none."""
    if _LF not in block:
        return _value(block, b"data") or b""
    lines = (_value(line, b"data") for line in block.split(b"\n"))
    return b"\n".join(line for line in lines if line is not None)


def event_name(block: bytes) -> bytes:
    """Return the name of an event's last ``event`` line; empty when it has none."""
    name = b""
    for line in block.split(b"\n"):
        name = _value(line, b"event") or name
    return name


def _value(line: bytes, field: bytes) -> bytes | None:
    if not line.startswith(field):
        return None
    if len(line) == len(field):
        return b""
    # Of "data: x" the field is data; "dataset: x" is a field nobody knows.
    if line[len(field) : len(field) + 1] != b":":
        return None
    return line[len(field) + 1 :].removeprefix(b" ")
