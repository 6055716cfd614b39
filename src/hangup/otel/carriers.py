"""Taking our entries out of headers that are about to leave the process.

A carrier may already hold them: HTTP clients copy the headers of the first request to
the one that follows a redirect, and proxies forward what they were sent. The API knows
only how to set a header, so this module knows the shapes carriers come in: mappings
whose keys may differ in case, and lists of pairs, of texts or of bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote_plus

from hangup.otel.wire import BAGGAGE, HEADER, PREFIX

if TYPE_CHECKING:
    from collections.abc import Callable


# How multi-valued headers give every value: multidict, werkzeug, httpx, email.
_ALL_VALUES: Final = ("getall", "getlist", "get_list", "get_all")


def strip(carrier: object, overwrite: Callable[[str, str], None] | None = None) -> None:
    """Remove the ``Hangup`` header and our baggage entries; keep everything else.

    A carrier of a shape not known here is left alone.

    Args:
        carrier: Changed in place.
        overwrite: ``overwrite(name, value)`` sets a header in a carrier that can be
            read but not deleted from.
    """
    if isinstance(carrier, list):
        _strip_pairs(carrier)
    elif hasattr(carrier, "keys") and hasattr(carrier, "__getitem__"):
        _strip_mapping(carrier, overwrite)


def without_ours(baggage: str) -> str:
    """Return a baggage header without our entries, the others byte for byte."""
    if PREFIX not in unquote_plus(baggage):
        return baggage
    return ",".join(entry for entry in baggage.split(",") if not _is_ours(entry))


def _is_ours(entry: str) -> bool:
    key = unquote_plus(entry.partition("=")[0])
    return key.strip().startswith(PREFIX)


def _strip_mapping(carrier: Any, overwrite: Callable[[str, str], None] | None) -> None:
    for key in list(carrier.keys()):
        name = _text(key).lower()
        if name not in (HEADER, BAGGAGE) or key not in carrier:
            continue
        value = _value(carrier, key)
        kept = None if name == HEADER else _kept(value)
        if kept == value:
            continue
        if kept and hasattr(carrier, "__setitem__"):
            carrier[key] = kept
        elif not kept and hasattr(carrier, "__delitem__"):
            del carrier[key]
        elif overwrite is not None:
            overwrite(_text(key), "" if kept is None else _text(kept))


def _value(carrier: Any, key: Any) -> Any:
    """Return what stands under ``key``, all of it where a carrier keeps several."""
    for name in _ALL_VALUES:
        every = getattr(carrier, name, None)
        if every is not None and len(values := every(key)) > 1:
            return ", ".join(map(_text, values))
    return carrier[key]


def _strip_pairs(carrier: list[Any]) -> None:
    pairs = []
    for pair in carrier:
        name = _text(pair[0]).lower() if isinstance(pair, tuple) and pair else ""
        if name not in (HEADER, BAGGAGE):
            pairs.append(pair)
        elif name == BAGGAGE:
            kept = _kept(pair[1])
            if kept == pair[1]:
                pairs.append(pair)
            elif kept:
                pairs.append((pair[0], kept, *pair[2:]))
    if len(pairs) != len(carrier) or any(
        a is not b for a, b in zip(pairs, carrier, strict=False)
    ):
        carrier[:] = pairs


def _kept(value: Any) -> Any:
    """Return a baggage value, of whatever type, without our entries."""
    if isinstance(value, bytes):
        return without_ours(value.decode("latin-1")).encode("latin-1")
    if isinstance(value, str):
        return without_ours(value)
    if isinstance(value, (list, tuple)):
        return type(value)(kept for one in value if (kept := _kept(one)))
    return value


def _text(value: object) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)
