"""A server that comes as a binary: started in a folder of its own, asked over HTTP."""

from __future__ import annotations

import subprocess
import time
from typing import TYPE_CHECKING, Self

import httpx
from support.processes import end, free_port

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import TracebackType

PATIENCE = 60.0  # seconds; the machine may be busy


class Daemon:
    """One that says at ``/-/ready`` when it can be asked.

    Args:
        log: Where it writes what it says.

    Attributes:
        address: Where on loopback it is to listen, host and port.
        client: Asks it.
    """

    def __init__(self, log: Path) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        self.client = httpx.Client(base_url=f"http://{self.address}", timeout=30)
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def command(self) -> list[str]:
        """Return what starts it."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(self.command(), stderr=log, stdout=log)  # noqa: S603
        self.until(self._ready)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.client.close()
        end(self._process, PATIENCE)

    def until(self, holds: Callable[[], object]) -> None:
        """Wait until something holds; it is another process, so ask again and again."""
        until = time.monotonic() + PATIENCE
        while not holds():
            assert self._process is not None
            running = self._process.poll() is None
            if not running or time.monotonic() > until:
                raise AssertionError(self._log.read_text()[-4_000:])
            time.sleep(0.2)

    def _ready(self) -> bool:
        try:
            return self.client.get("/-/ready").is_success
        except httpx.TransportError:
            return False
