"""The message that tells another process what became of a run. Pure."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from hangup.core.cause import Cause
from hangup.core.clock import SYSTEM_CLOCK

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hangup.core.clock import Clock

SETTLE_HEADER: Final = "hangup-settle"
"""On a response: a run is held here. On a request: the body carries notices."""
SETTLE_PATH: Final = "/.well-known/hangup"
SETTLE_RPC: Final = "/hangup.v1.Settlement/Tell"
"""Where the same body goes over gRPC."""
MAX_BODY: Final = 64 * 1024
MAX_NOTICES: Final = 400
"""In one body; that many always fit into ``MAX_BODY``."""

_LONGEST_AGO_MS: Final = 1e12
_TOKEN = re.compile(r"[0-9a-f]{32}")


class Outcome(StrEnum):
    """What became of a run in the process that opened it."""

    DELIVERED = "delivered"
    ABANDONED = "abandoned"


@dataclass(frozen=True, slots=True)
class Notice:
    """The fate of a run.

    Attributes:
        token: The run's id.
        outcome: Its fate.
        cause: Why it was abandoned; None when it was delivered.
        at: When that took effect, in seconds on ``clock.monotonic()``.
        clock: The clock of ``at``.
    """

    token: str
    outcome: Outcome
    cause: Cause | None
    at: float
    clock: Clock = field(default=SYSTEM_CLOCK, repr=False, compare=False)

    def ago(self) -> float:
        """Seconds since it took effect."""
        return max(0.0, self.clock.monotonic() - self.at)


def encode(notices: Sequence[Notice]) -> bytes:
    """Return the request body for at most ``MAX_NOTICES`` notices.

    The age travels, not the instant: clocks differ between processes.
    """
    settlements = [
        {
            "token": notice.token,
            "outcome": notice.outcome.value,
            "cause": "none" if notice.cause is None else notice.cause.value,
            "ago_ms": round(notice.ago() * 1000),
        }
        for notice in notices
    ]
    return json.dumps({"settlements": settlements}, separators=(",", ":")).encode()


def decode(body: bytes) -> list[object] | None:
    """Return the settlements of a request body, unchecked; None when malformed."""
    if len(body) > MAX_BODY:
        return None
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return None
    settlements = document.get("settlements") if isinstance(document, dict) else None
    return settlements if isinstance(settlements, list) else None


def read(settlements: object, clock: Clock = SYSTEM_CLOCK) -> list[Notice] | None:
    """Check decoded settlements; None when any of them is malformed. Never raises."""
    if not isinstance(settlements, list) or len(settlements) > MAX_NOTICES:
        return None
    now = clock.monotonic()
    notices = [_read_one(entry, now, clock) for entry in settlements]
    found = [notice for notice in notices if notice is not None]
    return found if len(found) == len(notices) else None


def _read_one(entry: object, now: float, clock: Clock) -> Notice | None:
    if not isinstance(entry, dict):
        return None
    token, ago = entry.get("token"), entry.get("ago_ms")
    if not isinstance(token, str) or _TOKEN.fullmatch(token) is None:
        return None
    if isinstance(ago, bool) or not isinstance(ago, (int, float)):
        return None
    if not 0 <= ago <= _LONGEST_AGO_MS:
        return None
    try:
        outcome = Outcome(str(entry.get("outcome")))
        cause = Cause(str(entry.get("cause"))) if outcome is Outcome.ABANDONED else None
    except ValueError:
        return None
    return Notice(token, outcome, cause, now - ago / 1000, clock)
