"""The last gate of the other HTTP clients: nothing of ours goes to a host off the list.

requests, urllib and aiohttp copy the headers of the first request to the one that
follows a redirect, past every instrumentation. So our entries are taken out where a
request is written: in the standard library's ``http.client``, under requests, urllib3,
urllib and botocore, and in aiohttp.
"""

from __future__ import annotations

import functools
from http.client import HTTPConnection
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from hangup import config
from hangup.core.guard import guarded
from hangup.otel import carriers, wire
from hangup.otel.hosts import host_allowed, host_of_url
from hangup.otel.patch import Patch

if TYPE_CHECKING:
    from collections.abc import Callable

_TARGET: Final = "_hangup_target"


def _allowed(host: str) -> bool:
    return host_allowed(host, config.current().propagate_to)


def _put_request(original: Any, patch: Patch) -> Callable[..., None]:
    @functools.wraps(original)
    def putrequest(self: Any, method: Any, url: Any, *args: Any, **kwargs: Any) -> None:
        if patch.active:
            guarded(_note_target, self, str(url))
        original(self, method, url, *args, **kwargs)

    return putrequest


def _note_target(connection: Any, url: str) -> None:
    # To a proxy goes a whole URL, or the host went before in a CONNECT.
    host = host_of_url(url) if "://" in url[:8] else ""
    tunnel = getattr(connection, "_tunnel_host", None)
    setattr(connection, _TARGET, host or tunnel or connection.host)


def _put_header(original: Any, patch: Patch) -> Callable[..., None]:
    @functools.wraps(original)
    def putheader(self: Any, header: Any, *values: Any) -> None:
        if patch.active and _name(header) in (wire.HEADER, wire.BAGGAGE):
            kept = guarded(_kept, self, header, values)
            if not kept:
                return
            values = kept
        original(self, header, *values)

    return putheader


def _name(header: object) -> str:
    text = header.decode("latin-1") if isinstance(header, bytes) else str(header)
    return text.lower()


def _kept(connection: Any, header: Any, values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the values that may be sent, none for a header that may not."""
    if _allowed(getattr(connection, _TARGET, "")):
        return values
    pairs = [(header, value) for value in values]
    carriers.strip(pairs)
    return tuple(value for _, value in pairs)


def _aiohttp_send(original: Any, patch: Patch) -> Callable[..., Any]:
    # Returns what the original returns, a coroutine.
    @functools.wraps(original)
    def send(self: Any, *args: Any, **kwargs: Any) -> Any:
        if patch.active:
            guarded(_strip_aiohttp, self)
        return original(self, *args, **kwargs)

    return send


def _strip_aiohttp(request: Any) -> None:
    if not _allowed(request.url.raw_host or ""):
        carriers.strip(request.headers)


_patches: list[Patch] = []


def install() -> None:
    """Wrap the standard library, and aiohttp where it can be imported. Idempotent."""
    if not _patches:
        _patches.append(Patch(HTTPConnection, "putrequest", _put_request))
        _patches.append(Patch(HTTPConnection, "putheader", _put_header))
        try:
            aiohttp = import_module("aiohttp")
        except ImportError:
            pass
        else:
            _patches.append(Patch(aiohttp.ClientRequest, "send", _aiohttp_send))
    for patch in _patches:
        patch.apply()


def uninstall() -> None:
    """Unwrap them. Idempotent."""
    for patch in _patches:
        patch.revert()
