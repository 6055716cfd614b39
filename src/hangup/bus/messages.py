"""The words that travel on the bus. Pure; what is malformed reads as None.

Three kinds of message are published, each a line of text::

    stop REPLY MARKER       the run of the marker is to stop
    held KEY RANK RUN       the run is the newest holder of a supersede key
    list REPLY PREFIX       who holds runs whose id begins so? ``-`` is all
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import NamedTuple

from hangup.core.cause import Cause
from hangup.core.remote import Verdict

MOST_DETAIL = 500  # characters
_MOST_TEXT = 65_536
_MOST_DIGITS = 20
# One step each: a stop is read while the run goes on spending.
_PREFIX = re.compile("[0-9a-f]{1,32}")
_RUN_ID = re.compile("[0-9a-f]{32}")
_CAUSES = {str(cause): cause for cause in Cause}


class Marker(NamedTuple):
    """A stop that was posted for a run.

    Attributes:
        run_id: Which run.
        verdict: What it says, whichever run it is of.
    """

    run_id: str
    verdict: Verdict


class Stop(NamedTuple):
    """See the module."""

    reply: str
    marker: Marker


class Held(NamedTuple):
    """See the module."""

    key: str
    rank: int
    run_id: str


class Listing(NamedTuple):
    """See the module."""

    reply: str
    prefix: str


def is_prefix(text: str) -> bool:
    """Whether run ids may begin so."""
    return _PREFIX.fullmatch(text) is not None


def is_run_id(text: object) -> bool:
    """Whether this is the whole id of a run."""
    return isinstance(text, str) and _RUN_ID.fullmatch(text) is not None


def key_name(key: str) -> str:
    """Return what a supersede key is called on the bus: of one length, and no names."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


def write_marker(run_id: str, cause: Cause, detail: str) -> str:
    """Return what is posted for a run."""
    marker = {"run": run_id, "cause": str(cause), "detail": detail[:MOST_DETAIL]}
    return json.dumps(marker)


def read_marker(text: str | None) -> Marker | None:
    """Return what :func:`write_marker` wrote; None where it did not write this."""
    if text is None or len(text) > _MOST_TEXT:
        return None
    try:
        marker = json.loads(text)
        run_id, cause, detail = marker["run"], marker["cause"], marker["detail"]
        if not is_run_id(run_id) or not isinstance(detail, str):
            return None
        return Marker(run_id, Verdict(_CAUSES[cause], detail[:MOST_DETAIL]))
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def read_stop(text: str | None) -> Stop | None:
    """Return a reply and the marker behind it; None where these are none."""
    reply, _, marker = (text or "").partition(" ")
    found = read_marker(marker)
    return None if found is None else Stop(reply, found)


def write_listing(reply: str, prefix: str) -> str:
    """Return the question who holds runs whose id begins with ``prefix``."""
    return f"list {reply} {prefix or '-'}"


def read(message: str) -> Stop | Held | Listing | None:
    """Return what was published; None where it is none of the three."""
    if len(message) > _MOST_TEXT:
        return None
    kind, _, rest = message.partition(" ")
    if kind == "stop":
        return read_stop(rest)
    words = rest.split(" ")
    if (
        kind == "held"
        and len(words) == len(Held._fields)
        and words[1].isdecimal()
        and len(words[1]) <= _MOST_DIGITS
    ):
        return Held(words[0], int(words[1]), words[2])
    if kind == "list" and len(words) == len(Listing._fields):
        prefix = "" if words[1] == "-" else words[1]
        return Listing(words[0], prefix) if not prefix or is_prefix(prefix) else None
    return None
