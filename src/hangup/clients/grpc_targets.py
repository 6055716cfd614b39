"""Which hosts a gRPC target names, and whether they may receive our entries."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from hangup import config
from hangup.otel.hosts import host_allowed

_LOCAL: Final = ("unix", "unix-abstract", "vsock")
_ADDRESSES: Final = ("ipv4", "ipv6")
_LONGEST: Final = 2_000


def target_allowed(target: str) -> bool:
    """Say whether whoever answers at a target may receive our entries: default deny.

    Pure but for the settings, never raises, never resolves a name. Of several addresses
    each must be allowed.
    """
    hosts = hosts_of(target)
    if hosts is None:
        return True
    allowed = config.current().propagate_to
    return bool(hosts) and all(host_allowed(host, allowed) for host in hosts)


@lru_cache(maxsize=1024)
def hosts_of(target: str) -> tuple[str, ...] | None:
    """Return the hosts in a target, as gRPC writes it; None: this machine, no network.

    ``host:port``, ``dns://server/host:port``, ``ipv4:a:port,b:port``, ``unix:path``,
    and what other resolvers take (``xds:///name``).
    """
    if len(target) > _LONGEST:
        return ()
    scheme, colon, rest = target.partition(":")
    if colon and scheme in _LOCAL:
        return None
    if colon and (scheme in _ADDRESSES or scheme == "dns" or rest.startswith("//")):
        # What comes between the slashes is who is asked, not who is meant.
        path = rest.rpartition("/")[2] if rest.startswith("//") else rest
        path = path.rpartition("/")[2]
    else:
        scheme, path = "dns", target
    parts = path.split(",") if scheme in _ADDRESSES else [path]
    return tuple(_without_port(part) for part in parts)


def _without_port(address: str) -> str:
    if address.startswith("["):
        return address[1:].partition("]")[0]
    if address.count(":") == 1:
        return address.partition(":")[0]
    return address
