"""Kill, supersede and list runs across processes.

Installed with hangup where ``HANGUP_BUS_URL`` is set; everything else works without.

    base        what a bus can carry, and what a process may ask of one
    messages    the words that travel
    live        the runs of this process that the bus asks about
    member      this process on the bus: one thread listens, one speaks
    threads     the two threads, started again where one is missing
    timing      when to try again, and what time it is on the bus
    operator    who kills and lists, from outside
    memory      a bus inside one process, for tests
    redis       Redis and Valkey, also in cluster mode

A newcomer reads ``member``. The bus decides nothing about time: when it is down, work
goes on under its own deadline.
"""

from __future__ import annotations

import atexit
import logging
import os
from importlib import import_module
from urllib.parse import urlsplit

from hangup import config
from hangup.bus.base import BusDown, Transport
from hangup.bus.live import Live
from hangup.bus.member import Member
from hangup.core import registry, remote
from hangup.errors import ConfigError

__all__ = ["connect", "install", "uninstall"]

_logger = logging.getLogger("hangup")


class _Installed:
    member: Member | None = None
    live: Live | None = None


def connect(url: str) -> Transport:
    """Return the bus at ``url``. Connects to nothing yet.

    Raises:
        BusDown: The library for it is not installed; says what to install.
        ConfigError: The URL cannot be read.
    """
    kind = "memory" if urlsplit(url).scheme == "memory" else "redis"
    try:
        module = import_module(f"hangup.bus.{kind}")
    except ModuleNotFoundError as error:
        raise BusDown(
            f"{error.name} is not installed: pip install 'hangup[redis]'"
        ) from error
    transport: Transport = module.connect(url)
    return transport


class _Unreachable:
    """Stands for a bus that is configured and cannot be had."""

    up = False

    @staticmethod
    def verdict(_run_id: str) -> None:
        """See :class:`hangup.core.remote.Reach`."""


def install() -> None:
    """Join the bus that is configured, if one is. Idempotent; blocks for nothing."""
    url = config.current().bus_url
    if url is None or remote.reach() is not None:
        return
    try:
        transport = connect(url)
    except (BusDown, ConfigError) as error:
        _logger.error("hangup cannot join its bus: %s", error)  # noqa: TRY400  clear
        remote.plug(_Unreachable())
        return
    live = Live()
    member = Member(transport, live)
    _Installed.member, _Installed.live = member, live
    registry.add_observer(live)
    remote.plug(member)
    member.start()
    # A process that ends with its run has still to acknowledge the stop.
    atexit.register(member.farewell)


def uninstall() -> None:
    """Leave the bus. Idempotent; its threads end within a second or two."""
    member, live = _Installed.member, _Installed.live
    _Installed.member = _Installed.live = None
    remote.plug(None)
    if live is not None:
        registry.remove_observer(live)
    if member is not None:
        atexit.unregister(member.farewell)
        member.stop()


def _after_fork() -> None:
    if _Installed.member is not None:
        _Installed.member.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
