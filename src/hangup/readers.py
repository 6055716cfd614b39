"""How values of settings are read: from a variable, from YAML, or as a keyword.

Each takes the name the value was given under, and the value.

Raises (all of them):
    ConfigError: It cannot be used; says what to give.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping

from hangup.errors import ConfigError


def words(name: str, text: object) -> tuple[str, ...]:
    """Return the words of a comma-separated text, or of a list."""
    parts = text.split(",") if isinstance(text, str) else list(_iterable(name, text))
    return tuple(part.strip() for part in parts if part.strip())


def _iterable(name: str, value: object) -> list[str]:
    if isinstance(value, (list, tuple, set, frozenset)) and all(
        isinstance(part, str) for part in value
    ):
        return list(value)
    raise ConfigError(name, value, "give a comma-separated text or a list of texts")


def seconds(name: str, value: object) -> float:
    """Return seconds, zero or more."""
    remedy = "give seconds as a number that is zero or more"
    try:
        number = float(value)  # type: ignore[arg-type]  # the failure is the answer
    except (TypeError, ValueError):
        raise ConfigError(name, value, remedy) from None
    if math.isnan(number) or number < 0:
        raise ConfigError(name, value, remedy)
    return number


def needs(name: str, value: object) -> dict[str, float]:
    """Read ``inference=2,tool=0.5,gpt-4o=3``: seconds per call kind or model."""
    remedy = "write KIND_OR_MODEL=SECONDS, comma-separated, each name once"
    if isinstance(value, Mapping):
        pairs = list(value.items())
    else:
        given = [word.partition("=") for word in words(name, value)]
        if not all(separator for _, separator, _ in given):
            raise ConfigError(name, value, remedy)
        pairs = [(key.strip(), least.strip()) for key, _, least in given]
    found: dict[str, float] = {}
    for key, least in pairs:
        if not isinstance(key, str) or not key or key in found:
            raise ConfigError(name, value, remedy)
        found[key] = seconds(name, least)
    return found


def text(_name: str, value: object) -> str:
    """Return a text without space around it."""
    return str(value).strip()


def path(name: str, value: object) -> str:
    """Return the path of a file."""
    if isinstance(value, (str, os.PathLike)):
        path = os.fspath(value)
        if isinstance(path, str) and path.strip():
            return path
    raise ConfigError(name, value, "give the path of a file")


def percent(name: str, value: object) -> float:
    """Return a percentage, 0 to 100, with or without its sign."""
    number = seconds(name, str(value).strip().removesuffix("%"))
    if number > 100:  # noqa: PLR2004  percent
        raise ConfigError(name, value, "give a percentage, 0 to 100")
    return number


def tenant_from(name: str, value: object) -> str:
    """Return ``header:name`` or ``baggage:name``."""
    kind, colon, key = str(value).strip().partition(":")
    key = key.strip()
    if colon and kind in ("header", "baggage") and key:
        return f"{kind}:{key.lower() if kind == 'header' else key}"
    raise ConfigError(name, value, "write header:NAME or baggage:NAME")


FRAMEWORKS = ("starlette", "fastapi", "litestar", "django", "quart")
"""Web frameworks that can be served without a line of code."""


def frameworks(name: str, value: object) -> tuple[str, ...]:
    """Return the frameworks that are named, or all, or none."""
    named = tuple(word.lower() for word in words(name, value))
    if named == ("none",) or not named:
        return ()
    if named == ("all",):
        return FRAMEWORKS
    if set(named) <= set(FRAMEWORKS):
        return named
    known = ", ".join(FRAMEWORKS)
    raise ConfigError(name, value, f"choose some of {known}, or write all or none")


_BUSES = ("redis", "rediss", "valkey", "valkeys", "unix", "memory")


def bus_url(name: str, value: object) -> str:
    """Return the URL of a bus; an error does not tell it."""
    url = str(value).strip()
    scheme, separator, _ = url.partition("://")
    if separator and scheme in _BUSES:
        return url
    # Not the value: it may hold a password.
    shown = f"{scheme}://..." if separator else "..."
    raise ConfigError(name, shown, f"give a URL that begins with one of {_BUSES}")
