"""The content encodings of an answer that can be undone here, to meter what passes."""

from __future__ import annotations

import zlib
from typing import Final

_GZIP: Final = 16 + zlib.MAX_WBITS
# Decompressed at a time, so that a small chunk never becomes a huge one at once.
_PIECE: Final = 256 * 1024


def decoding(encoding: str) -> tuple[bool, Inflate | None]:
    """Return whether we can undo a content encoding, and what does it; None: nothing.

    Only the encodings that the standard library knows; the client library undoes all
    of its own for the application, whatever we can read.
    """
    name = encoding.strip().lower()
    if name in {"gzip", "x-gzip"}:
        return True, Inflate(_GZIP)
    if name == "deflate":
        return True, Inflate(zlib.MAX_WBITS)
    return name in {"", "identity"}, None


class Inflate:
    """Undoes gzip or deflate, chunk by chunk, in pieces of bounded size."""

    def __init__(self, bits: int) -> None:
        self._inflate = zlib.decompressobj(bits)

    def __call__(self, data: bytes) -> list[bytes]:
        """Return what a chunk holds."""
        pieces = []
        while data:
            pieces.append(self._inflate.decompress(data, _PIECE))
            data = self._inflate.unconsumed_tail
        return pieces
