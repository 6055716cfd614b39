"""What processes that share a queue tell each other of a run, without an address.

A worker has no place where it could be told what became of a run: nobody knows which
worker takes a message, or when, or whether one is up at all. But all of them share a
store (Redis, a result backend). There the process that sends work for a run keeps one
*line* for it, which workers read when they begin and while they work.

Where the store deletes what is over (Redis), the time it still keeps the line is also a
clock that every process shares: the time left, and how long ago the run was abandoned,
do not depend on anybody's wall clock, and the time in the queue counts. Elsewhere wall
clocks have to do, as they do for the queue's own ``eta`` and ``expires``. Pure.
"""

from __future__ import annotations

import json
import math
import re
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from hangup.core.cause import Cause

if TYPE_CHECKING:
    from hangup.otel.notices import Notice

KEPT: Final = 3600.0
"""Seconds for which a line outlives its deadline: time enough to be read late."""
_UNTIMED: Final = 24 * 3600.0
"""Seconds for which the line of a run without a deadline is kept."""

_MAX_LENGTH: Final = 300
_KEY = re.compile(r"[0-9a-f]{32}-[0-9a-f]{8}")

OPEN: Final = "open"
DELIVERED: Final = "delivered"
ABANDONED: Final = "abandoned"


@dataclass(frozen=True, slots=True)
class Line:
    """What stands on the board, as seen at one moment.

    Attributes:
        outcome: ``OPEN``, ``DELIVERED`` or ``ABANDONED``.
        cause: Why it was abandoned.
        left: Seconds to the deadline, below zero once past; None where the line does
            not tell, ``math.inf`` without a deadline.
        ago: Seconds since the outcome took effect.
    """

    outcome: str
    cause: Cause | None = None
    left: float | None = None
    ago: float = 0.0


class Post:
    """The line of one run, as the process that keeps it sees it.

    Args:
        key: Where it stands.
        left: Seconds to the deadline, ``math.inf`` without one.
        now: The monotonic time of that.
        wall: The Unix time of that.
    """

    __slots__ = ("_expires_at", "_unix", "key")

    def __init__(self, key: str, left: float, now: float, wall: float) -> None:
        self.key: str = key
        timed = math.isfinite(left)
        self._expires_at = now + (left + KEPT if timed else _UNTIMED)
        self._unix = wall + left if timed else None

    def lifetime(self, now: float) -> float:
        """Return for how many seconds the line is to be kept, at least one."""
        return max(1.0, self._expires_at - now)

    def opened(self) -> str:
        """Return the line of a run that goes on."""
        return self._text({"o": OPEN})

    def closed(self, notice: Notice, wall: float) -> str:
        """Return the line of a run whose fate is known."""
        line: dict[str, Any] = {
            "o": notice.outcome.value,
            "b": round((self._expires_at - notice.at) * 1000),
            "a": round((wall - notice.ago()) * 1000),
        }
        if notice.cause is not None:
            line["c"] = notice.cause.value
        return self._text(line)

    def _text(self, line: dict[str, Any]) -> str:
        if self._unix is not None:
            line["d"] = round(self._unix * 1000)
        return json.dumps(line, separators=(",", ":"))


def new_key(token: str) -> str:
    """Return a new key for the run with this token."""
    return f"{token}-{secrets.token_hex(4)}"


def is_key_of(key: object, token: str) -> bool:
    """Whether what came over the wire is a key of the run with this token."""
    return (
        isinstance(key, str)
        and _KEY.fullmatch(key) is not None
        and key.startswith(f"{token}-")
    )


def read(text: object, lifetime: float | None, wall: float) -> Line | None:
    """Read a line; None where there is none, or it is malformed. Never raises.

    Args:
        text: As it stands there.
        lifetime: For how many seconds the store still keeps it; None: it does not say.
        wall: The Unix time.
    """
    found = _parsed(text)
    outcome = found.get("o")
    unix = _seconds(found.get("d"))
    left: float | None = math.inf
    if unix is not None:
        left = unix - wall if lifetime is None else lifetime - KEPT
    match outcome:
        case "open":
            return Line(OPEN, left=left)
        case "delivered":
            return Line(DELIVERED, left=left, ago=_ago(found, lifetime, wall))
        case "abandoned" if str(found.get("c")) in set(Cause):
            cause = Cause(str(found["c"]))
            return Line(ABANDONED, cause, left, _ago(found, lifetime, wall))
    return None


def _parsed(text: object) -> dict[str, Any]:
    """Return the object that ``text`` is, an empty one if it is none."""
    if isinstance(text, bytes):
        text = text.decode("utf-8", "replace")
    if not isinstance(text, str) or len(text) > _MAX_LENGTH:
        return {}
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _ago(found: dict[str, Any], lifetime: float | None, wall: float) -> float:
    before, at = _seconds(found.get("b")), _seconds(found.get("a"))
    if lifetime is not None and before is not None:
        return max(0.0, before - lifetime)
    return 0.0 if at is None else max(0.0, wall - at)


def _seconds(milliseconds: object) -> float | None:
    if isinstance(milliseconds, bool) or not isinstance(milliseconds, (int, float)):
        return None
    return milliseconds / 1000 if math.isfinite(milliseconds) else None
