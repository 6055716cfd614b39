"""How a run travels between processes: a codec, pure but for its one warning.

Two forms of one :class:`Inbound`: entries of the W3C baggage, which intermediaries that
know nothing of hangup pass on, and one compact header that survives a full baggage::

    Hangup: t="<32 hex>", d=<unix ms>, l=<ms left>, m="<mode>"[, g=<ms since abandoned>]

The header is a dictionary of RFC 9651. Members this version does not know are skipped,
anything malformed makes the whole form count as absent: never an exception, never an
instant expiry, never an unlimited deadline.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from hangup.config import Mode
from hangup.core.clock import unix_offset
from hangup.core.deadline import Deadline
from hangup.otel.once import warn_once

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hangup.core.clock import Clock

HEADER: Final = "hangup"
BAGGAGE: Final = "baggage"
PREFIX: Final = "hangup."
"""Every baggage key of ours starts so."""

MAX_HEADER_LENGTH: Final = 512
MAX_LEFT: Final = 30 * 24 * 3600.0
"""The longest time left that is believed, in seconds."""

SKEW_WORTH_REPORTING: Final = 1.0

_MAX_INTEGER = 999_999_999_999_999  # RFC 9651, 3.3.1
_TOKEN = re.compile(r"[0-9a-f]{32}")
_DIGITS = re.compile(r"[0-9]{1,15}")

_KEY = r"[a-z*][a-z0-9_.*-]*"
_ITEM = (
    r'"(?:[ !#-\[\]-~]|\\["\\])*"'  # string
    r"|-?[0-9]{1,15}(?![0-9.])|-?[0-9]{1,12}\.[0-9]{1,3}"  # integer, decimal
    r"|\?[01]"  # boolean
    r"|[A-Za-z*][A-Za-z0-9!#$%&'*+.^_`|~:/-]*"  # token
)
_MEMBER = re.compile(
    rf"(?P<key>{_KEY})(?:=(?P<item>{_ITEM}))?(?:;[ ]*{_KEY}(?:=(?:{_ITEM}))?)*"
)
_COMMA = re.compile(r"[ \t]*,[ \t]*(?=.)")


@dataclass(frozen=True, slots=True)
class Inbound:
    """A run as it stands on the wire.

    Attributes:
        token: 32 lower-case hex characters, the run's id.
        left: Seconds to the deadline when it was sent, measured by the sender.
        deadline_unix: The deadline in Unix seconds, by the sender's clock.
        mode: The sender's mode; the less intrusive of the two wins.
        gone: Seconds since the run was abandoned, where it was.
        skew: Seconds by which the sender's clock is ahead of ours, seen on arrival;
            None where it cannot be told.
    """

    token: str
    left: float | None = None
    deadline_unix: float | None = None
    mode: Mode | None = None
    gone: float | None = None
    skew: float | None = None


def encode_header(run: Inbound) -> str:
    """Return the value of the ``Hangup`` header, at most 120 characters."""
    members = [f't="{run.token}"']
    members += [f"{key}={number}" for key, number in _numbers(run, "d", "l")]
    if run.mode is not None:
        members.append(f'm="{run.mode.value}"')
    if run.gone is not None:
        members.append(f"g={_nearest(run.gone)}")
    return ", ".join(members)


def decode_header(text: str) -> Inbound | None:
    """Read a ``Hangup`` header; None when it is absent, empty or malformed.

    Never raises; bounded work on input of any length.
    """
    if not text[:MAX_HEADER_LENGTH].strip():
        return None
    members = _members(text)
    found = None if members is None else _from_members(members)
    if found is None:
        warn_once(
            "malformed header",
            "a malformed Hangup header was ignored (said once per process): %.80r",
            text[:80],
        )
    return found


def to_baggage(run: Inbound) -> dict[str, str]:
    """Return the baggage entries; their values use only ``[0-9A-Za-z.-]``."""
    entries = {f"{PREFIX}token": run.token}
    for key, number in _numbers(run, "deadline", "left"):
        entries[f"{PREFIX}{key}"] = str(number)
    if run.mode is not None:
        entries[f"{PREFIX}mode"] = run.mode.value
    if run.gone is not None:
        entries[f"{PREFIX}gone"] = str(_nearest(run.gone))
    return entries


def from_baggage(entries: Mapping[str, object]) -> Inbound | None:
    """Read our entries of a decoded baggage; None when absent or malformed.

    Never raises.
    """
    token = entries.get(f"{PREFIX}token")
    if token is None:
        return None
    found = _build(
        token,
        entries.get(f"{PREFIX}deadline"),
        entries.get(f"{PREFIX}left"),
        entries.get(f"{PREFIX}mode"),
        entries.get(f"{PREFIX}gone"),
    )
    if found is None:
        warn_once(
            "malformed baggage",
            "malformed hangup.* baggage was ignored (said once per process): %.80r",
            str(token)[:80],
        )
    return found


def deadline_of(inbound: Inbound, clock: Clock, max_budget: float | None) -> Deadline:
    """Return the deadline this process holds the run to, never beyond ``max_budget``.

    The relative value is re-anchored on the local monotonic clock, so that clock skew
    does not matter; call it when the request arrives. The absolute value is only a
    fallback, and one in the past is ignored: that cannot be told from a clock that is
    ahead. Without either the deadline is ``max_budget`` from now (None: never).
    """
    now = clock.monotonic()
    seconds = math.inf if max_budget is None else max_budget
    if inbound.left is not None:
        seconds = min(seconds, inbound.left)
    elif inbound.deadline_unix is not None:
        ahead = inbound.deadline_unix - unix_offset(clock) - now
        if ahead > 0:
            seconds = min(seconds, ahead, MAX_LEFT)
    return Deadline(now + seconds, clock)


def skew_of(inbound: Inbound, clock: Clock) -> float | None:
    """Return how far in seconds the sender's clock is ahead of ours.

    Call it on arrival; the time on the way counts against the sender. None where the
    sender did not give both values.
    """
    if inbound.left is None or inbound.deadline_unix is None:
        return None
    return inbound.deadline_unix - inbound.left - clock.wall()


def _numbers(run: Inbound, deadline: str, left: str) -> list[tuple[str, int]]:
    numbers = []
    if run.deadline_unix is not None and math.isfinite(run.deadline_unix):
        numbers.append((deadline, _nearest(run.deadline_unix)))
    if run.left is not None and math.isfinite(run.left):
        # Rounded down: what is sent is never longer than what is left. The nudge keeps
        # a value that came from milliseconds, so that a round trip changes nothing.
        whole = math.floor(min(run.left, MAX_LEFT) * 1000 + 1e-3)
        numbers.append((left, max(whole, 0)))
    return numbers


def _nearest(seconds: float) -> int:
    return round(min(max(seconds * 1000, 0.0), _MAX_INTEGER))


def _members(text: str) -> dict[str, str | None] | None:
    """Parse the dictionary into key and raw item (None: a bare key, which is true)."""
    if len(text) > MAX_HEADER_LENGTH:
        return None
    text = text.strip(" ")
    members: dict[str, str | None] = {}
    at = 0
    while True:
        member = _MEMBER.match(text, at)
        if member is None:
            return None
        members[member["key"]] = member["item"]
        at = member.end()
        if at == len(text):
            return members
        comma = _COMMA.match(text, at)
        if comma is None:
            return None
        at = comma.end()


def _from_members(members: Mapping[str, str | None]) -> Inbound | None:
    token, mode = _string(members.get("t")), _string(members.get("m"))
    if token is None or ("m" in members and mode is None):
        return None
    if any(key in members and members[key] is None for key in "dlg"):
        return None
    return _build(token, members.get("d"), members.get("l"), mode, members.get("g"))


def _string(item: str | None) -> str | None:
    return item[1:-1] if item is not None and item.startswith('"') else None


def _build(
    token: object, deadline: object, left: object, mode: object, gone: object
) -> Inbound | None:
    """Check every part; None when any of them is not what we send."""
    if not isinstance(token, str) or _TOKEN.fullmatch(token) is None:
        return None
    numbers: list[float | None] = []
    for value, most in ((deadline, math.inf), (left, MAX_LEFT), (gone, math.inf)):
        if value is None:
            numbers.append(None)
            continue
        if not isinstance(value, str) or _DIGITS.fullmatch(value) is None:
            return None
        seconds = int(value) / 1000
        if seconds > most:
            return None
        numbers.append(seconds)
    if mode is not None and mode not in set(Mode):
        return None
    return Inbound(
        token=token,
        deadline_unix=numbers[0],
        left=numbers[1],
        mode=None if mode is None else Mode(str(mode)),
        gone=numbers[2],
    )
