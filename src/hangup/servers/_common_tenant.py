"""Whom a request is for: said by a callback, a header or a baggage entry."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from hangup.core.guard import guarded

if TYPE_CHECKING:
    from hangup.servers._common_fields import Fields

TenantOf: TypeAlias = Callable[[Any], str | None]
"""Gets the request as the server has it: an ASGI scope, a WSGI environ, aiohttp's."""

MOST_CHARACTERS: Final = 200


def header_of(source: str | None) -> str:
    """Return the header that ``HANGUP_TENANT_FROM`` names, or ""."""
    kind, _, key = (source or "").partition(":")
    return key if kind == "header" else ""


def tenant_of(
    asked: TenantOf | None, request: object, source: str | None, fields: Fields
) -> str:
    """Return the tenant of a request, or "" where nobody says. Raises nothing.

    Args:
        asked: The callback, if there is one; it goes first.
        request: What it gets.
        source: ``HANGUP_TENANT_FROM``.
        fields: The request's headers.
    """
    found = None if asked is None else guarded(asked, request)
    if not isinstance(found, str) or not found:
        kind, _, key = (source or "").partition(":")
        found = fields.entry(key) if kind == "baggage" else fields.tenant
    found = found.strip()
    # It goes into logs and statements: what is not plain text is nobody's name.
    return found if found.isprintable() and len(found) <= MOST_CHARACTERS else ""
