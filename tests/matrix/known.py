"""What does not hold yet, by row and column, and why: strict, so it cannot go stale."""

from __future__ import annotations

from typing import Final

KNOWN: Final[dict[tuple[str, str], str]] = {}
