"""Which hosts may receive the deadline and the token: default deny.

Allowed are loopback, private addresses, and names that only a cluster or a local
resolver knows; everything else is somebody else's machine unless the operator lists it
in ``HANGUP_PROPAGATE_TO``. Link-local addresses stay denied: the metadata services of
clouds answer there.
"""

from __future__ import annotations

import re
from functools import lru_cache
from ipaddress import IPv6Address, ip_address, ip_network
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from ipaddress import IPv4Address, IPv4Network, IPv6Network

_PRIVATE = tuple(
    ip_network(block)
    for block in (
        "127.0.0.0/8",
        "10.0.0.0/8",
        "172.16.0.0/12",
        "192.168.0.0/16",
        "::1/128",
        "fc00::/7",
    )
)
_CLUSTER_SUFFIXES = (".svc", ".cluster.local", ".internal", ".localhost")
_LONGEST = 253  # RFC 1035, without the root's dot
_NAME = re.compile(r"[a-z0-9_-]{1,63}(\.[a-z0-9_-]{1,63})*")
# Resolvers take these for addresses: 2130706433 and 0x7f000001 are 127.0.0.1, and
# other such numbers are anybody.
_NUMERIC_LABEL = re.compile(r"0x[0-9a-f]*|[0-9]+")


class _Told:
    denied: Callable[[str], None] | None = None


def on_denied(callback: Callable[[str], None] | None) -> None:
    """Have ``callback`` told of every host that was not allowed; None: nobody.

    It must not raise.
    """
    _Told.denied = callback


def host_of_url(url: str) -> str:
    """Return the host of ``url`` in lower case, "" where there is none."""
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def host_allowed(host: str, extra: Sequence[str] = ()) -> bool:
    """Say whether ``host`` may receive our entries.

    Pure, never raises, never resolves a name.

    Args:
        host: A name or an address without port; case and a trailing dot do not matter.
        extra: What the operator allows beside the built-in list: exact names,
            ``.suffix`` or ``*.suffix`` (any depth, not the suffix itself), addresses,
            networks in CIDR notation, or ``*`` for every host.
    """
    allowed = _host_allowed(host[: _LONGEST + 2], tuple(extra))
    if not allowed and _Told.denied is not None:
        _Told.denied(host)
    return allowed


def host_listed(host: str, patterns: Sequence[str]) -> bool:
    """Say whether ``host`` is on a list, written as for :func:`host_allowed`."""
    return bool(patterns) and _host_listed(host[: _LONGEST + 2], tuple(patterns))


@lru_cache(maxsize=1024)
def _host_listed(host: str, patterns: tuple[str, ...]) -> bool:
    name = host.strip().lower().removeprefix("[").removesuffix("]").removesuffix(".")
    address = _address(name)
    if address is not None:
        return "*" in patterns or any(address in one for one in _networks(patterns))
    return any(_matches(name, pattern) for pattern in patterns)


@lru_cache(maxsize=1024)
def _host_allowed(host: str, extra: tuple[str, ...]) -> bool:
    name = host.strip().lower().removeprefix("[").removesuffix("]").removesuffix(".")
    address = _address(name)
    if address is not None:
        return any(address in block for block in (*_PRIVATE, *_networks(extra))) or (
            "*" in extra
        )
    if len(name) > _LONGEST or _NAME.fullmatch(name) is None:
        return False
    return _known_name(name) or any(_matches(name, pattern) for pattern in extra)


def _known_name(name: str) -> bool:
    if "." in name:
        return name.endswith(_CLUSTER_SUFFIXES)
    return _NUMERIC_LABEL.fullmatch(name) is None


def _matches(name: str, pattern: str) -> bool:
    wanted = pattern.strip().lower().removesuffix(".")
    if wanted == "*":
        return True
    if wanted.startswith("*."):
        wanted = wanted[1:]
    return name.endswith(wanted) if wanted.startswith(".") else name == wanted


def _address(text: str) -> IPv4Address | IPv6Address | None:
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


def _networks(extra: tuple[str, ...]) -> list[IPv4Network | IPv6Network]:
    networks = []
    for pattern in extra:
        try:
            networks.append(ip_network(pattern.strip(), strict=False))
        except ValueError:
            continue  # a name
    return networks
