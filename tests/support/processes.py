"""Processes that a test starts, and that end with it."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import subprocess


def free_port() -> int:
    """Return a port on loopback that nobody listens on.

    For what does not take a socket that listens already.
    """
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


def end(process: subprocess.Popen[bytes] | None, patience: float) -> None:
    """End a process by SIGTERM; one that has not ended in time is killed, and raises.

    Args:
        process: What was started, if it was.
        patience: Seconds.
    """
    if process is None:
        return
    process.terminate()
    try:
        process.wait(patience)
    finally:
        process.kill()
        process.wait()
