"""How a run travels between processes: a codec, pure but for its warnings.

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
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote_plus

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

_MODES: Final = {mode.value: mode for mode in Mode}
_MAX_LEFT_MS: Final = int(MAX_LEFT * 1000)
_BLANK: Final = " \t"
"""Not all that ``str.strip`` takes for one: ``\\x1d000`` is no number, and not 0."""
_MAX_READ: Final = 8192  # the W3C limits of a baggage
_MAX_ENTRIES: Final = 180
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
# What we send ourselves is read in one piece, whatever else is allowed by members.
_AS_SENT = re.compile(
    r't="([0-9a-f]{32})"(?:, d=([0-9]{1,15}))?(?:, l=([0-9]{1,15}))?'
    r'(?:, m="([a-z]{1,8})")?(?:, g=([0-9]{1,15}))?'
)
_ENTRIES_AS_SENT = re.compile(
    r"hangup\.token=([0-9a-f]{32})(?:,hangup\.deadline=([0-9]{1,15}))?"
    r"(?:,hangup\.left=([0-9]{1,15}))?(?:,hangup\.mode=([a-z]{1,8}))?"
    r"(?:,hangup\.gone=([0-9]{1,15}))?(?:,|\Z)"
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
        arrival: When it arrived, and on which clock; None where nobody has noted it.
            What is relative counts from then, however late it is asked for.
    """

    token: str
    left: float | None = None
    deadline_unix: float | None = None
    mode: Mode | None = None
    gone: float | None = None
    skew: float | None = None
    arrival: tuple[Clock, float] | None = field(default=None, compare=False, repr=False)


def encode(run: Inbound) -> tuple[str, str]:
    """Return the value of the ``Hangup`` header, and our entries of a baggage.

    The header has at most 120 characters. Neither needs any quoting.
    """
    token, mode, at, left = run.token, run.mode, run.deadline_unix, run.left
    deadline = None if at is None or at == math.inf else _nearest(at)
    # Rounded down: what is sent is never longer than what is left. The nudge keeps a
    # value that came from milliseconds, so that a round trip changes nothing.
    rest = None if left is None or left == math.inf else int(left * 1000 + 1e-3)
    if rest is not None and not 0 <= rest <= _MAX_LEFT_MS:
        rest = 0 if rest < 0 else _MAX_LEFT_MS
    if run.gone is None and not (deadline is None or rest is None or mode is None):
        # The usual ones, in one piece.
        header = f't="{token}", d={deadline}, l={rest}, m="{mode}"'
        return header, (
            f"hangup.token={token},hangup.deadline={deadline},hangup.left={rest},"
            f"hangup.mode={mode}"
        )
    gone = None if run.gone is None else _nearest(run.gone)
    parts = (("d", "deadline", deadline), ("l", "left", rest), ("m", "mode", mode))
    header, entries = f't="{token}"', f"{PREFIX}token={token}"
    for key, name, value in (*parts, ("g", "gone", gone)):
        if value is not None:
            header += f", {key}=" + (f'"{value}"' if key == "m" else f"{value}")
            entries += f",{PREFIX}{name}={value}"
    return header, entries


def encode_header(run: Inbound) -> str:
    """Return the value of the ``Hangup`` header, at most 120 characters."""
    return encode(run)[0]


def decode_header(text: str) -> Inbound | None:
    """Read a ``Hangup`` header; None when it is absent, empty or malformed.

    Never raises; bounded work on input of any length.
    """
    if (usual := _AS_SENT.fullmatch(text)) is not None and (
        found := _checked(*usual.groups())
    ) is not None:
        return found
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
    pairs = (entry.partition("=") for entry in encode(run)[1].split(","))
    return {key: value for key, _, value in pairs}


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


def from_baggage_text(text: str) -> Inbound | None:
    """Read our entries of a baggage header; None when absent or malformed.

    Never raises. Read are as many bytes and entries as the W3C lets a baggage have:
    ours, which go first, are found in one that is over these limits too.
    """
    if "hangup" not in text and "%" not in text:
        return None
    usual = _ENTRIES_AS_SENT.match(text)
    # What follows decides too, where somebody has put ours into another order.
    if usual is not None and text.find("hangup", usual.end()) < 0:
        found = _checked(*usual.groups())
        if found is not None:
            return found
    if len(text) > _MAX_READ:  # and not half of a number
        text = text[:_MAX_READ].rpartition(",")[0]
    entries: dict[str, object] = {}
    for entry in text.split(",", _MAX_ENTRIES)[:_MAX_ENTRIES]:
        key, _, value = entry.partition("=")
        if (name := unquote_plus(key).strip(_BLANK)).startswith(PREFIX):
            entries[name] = unquote_plus(value.partition(";")[0]).strip(_BLANK)
    return from_baggage(entries)


def past_entries(text: str) -> str:
    """Return a baggage header without our entries, where they stand as we send them.

    Itself, the same object, where they do not.
    """
    ours = _ENTRIES_AS_SENT.match(text)
    return text if ours is None else text[ours.end() :]


def arrived(inbound: Inbound, clock: Clock) -> Inbound:
    """Note on what was just decoded that it arrives now, and its skew; returns it.

    Skew beyond a second is warned of, once per process.
    """
    # Nobody else has seen it yet, and a copy costs as much as decoding it did.
    object.__setattr__(inbound, "arrival", (clock, clock.monotonic()))
    skew = skew_of(inbound, clock)
    if skew is not None:
        object.__setattr__(inbound, "skew", skew)
        if abs(skew) > SKEW_WORTH_REPORTING:
            warn_once(
                "clock skew",
                "the clock of a caller and ours are %.1f s apart, or its request was "
                "that long on its way; the time left is measured on the local clock "
                "from its arrival (said once per process)",
                skew,
            )
    return inbound


def arrived_at(inbound: Inbound, clock: Clock) -> float:
    """Return when it arrived, on ``clock.monotonic()``; now where that is not known."""
    if inbound.arrival is not None and inbound.arrival[0] is clock:
        return inbound.arrival[1]
    return clock.monotonic()


def deadline_of(inbound: Inbound, clock: Clock, max_budget: float | None) -> Deadline:
    """Return the deadline this process holds the run to, never beyond ``max_budget``.

    The relative value is re-anchored on the local monotonic clock, at its arrival, so
    that clock skew does not matter. The absolute value is only a fallback, and one in
    the past is ignored: that cannot be told from a clock that is ahead. Without either
    the deadline is ``max_budget`` from then (None: never).
    """
    now = arrived_at(inbound, clock)
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


def _nearest(seconds: float) -> int:
    number = round(seconds * 1000)
    return number if 0 <= number <= _MAX_INTEGER else 0 if number < 0 else _MAX_INTEGER


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
    for value in (deadline, left, gone):
        if value is not None and not (
            isinstance(value, str) and _DIGITS.fullmatch(value)
        ):
            return None
    return _checked(token, deadline, left, mode, gone)


def _checked(
    token: str, deadline: Any, left: Any, mode: Any, gone: Any
) -> Inbound | None:
    """Put together what has the right form; None where a value cannot be."""
    seconds = None if left is None else int(left) / 1000
    if seconds is not None and seconds > MAX_LEFT:
        return None
    known = None if mode is None else _MODES.get(mode)
    if known is None and mode is not None:
        return None
    return Inbound(
        token,
        seconds,
        None if deadline is None else int(deadline) / 1000,
        known,
        None if gone is None else int(gone) / 1000,
    )
