"""On which ports this process listens: for ``hangup doctor``. Linux only."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Final

_LISTENING: Final = "0A"  # TCP_LISTEN, as /proc/net/tcp writes it
_TABLES: Final = ("/proc/self/net/tcp", "/proc/self/net/tcp6")


def listening_ports() -> list[int]:
    """Return the TCP ports that sockets of this process listen on.

    Also those it has inherited. Empty where the system does not say.
    """
    ours = set()
    for descriptor in Path("/proc/self/fd").glob("*"):
        with contextlib.suppress(OSError):  # closed in the meantime
            ours.add(str(descriptor.readlink()))
    ports = set()
    for table in _TABLES:
        with contextlib.suppress(OSError):
            for line in Path(table).read_text("ascii").splitlines()[1:]:
                words = line.split()
                if words[3] == _LISTENING and f"socket:[{words[9]}]" in ours:
                    ports.add(int(words[1].rpartition(":")[2], 16))
    return sorted(ports)
