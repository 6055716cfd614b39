"""A real Alertmanager on a free port, alone."""

from __future__ import annotations

import subprocess
import time
from typing import TYPE_CHECKING, Any, Self

import httpx
from support.prometheus import PATIENCE, free_port
from support.requires import require

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

_BINARY = "prometheus-alertmanager"
_CONFIG = "route: {receiver: nobody}\nreceivers: [{name: nobody}]\n"


class Alertmanager:
    """Debian's binary with a folder of its own.

    Args:
        folder: For its configuration and its data.

    Attributes:
        address: Where it listens, as Prometheus wants it.
    """

    def __init__(self, folder: Path) -> None:
        require(_BINARY)
        self.address = f"127.0.0.1:{free_port()}"
        (folder / "alertmanager.yaml").write_text(_CONFIG)
        self._folder = folder
        self._client = httpx.Client(base_url=f"http://{self.address}", timeout=30)
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        with (self._folder / "alertmanager.log").open("wb") as log:
            self._process = subprocess.Popen(  # noqa: S603
                [
                    _BINARY,
                    f"--config.file={self._folder / 'alertmanager.yaml'}",
                    f"--storage.path={self._folder / 'alerts'}",
                    f"--web.listen-address={self.address}",
                    "--cluster.listen-address=",
                ],
                stderr=log,
                stdout=log,
            )
        end = time.monotonic() + PATIENCE
        while not self._ready():
            # Another process: there is nothing to wait on but its answer.
            if self._process.poll() is not None or time.monotonic() > end:
                raise AssertionError((self._folder / "alertmanager.log").read_text())
            time.sleep(0.1)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._client.close()
        assert self._process is not None
        self._process.terminate()
        self._process.wait(PATIENCE)

    def alerts(self) -> list[dict[str, Any]]:
        """Return what it was told, and still holds."""
        return list(self._client.get("/api/v2/alerts").raise_for_status().json())

    def _ready(self) -> bool:
        try:
            return self._client.get("/-/ready").is_success
        except httpx.TransportError:
            return False
