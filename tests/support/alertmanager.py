"""A real Alertmanager on a free port, alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from support.daemon import Daemon
from support.requires import require

if TYPE_CHECKING:
    from pathlib import Path

_BINARY = "prometheus-alertmanager"
_CONFIG = "route: {receiver: nobody}\nreceivers: [{name: nobody}]\n"


class Alertmanager(Daemon):
    """Debian's binary with a folder of its own.

    Args:
        folder: For its configuration and its data.
    """

    def __init__(self, folder: Path) -> None:
        require(_BINARY)
        super().__init__(folder / "alertmanager.log")
        (folder / "alertmanager.yaml").write_text(_CONFIG)
        self._folder = folder

    def command(self) -> list[str]:
        """Return it with no cluster to look for."""
        return [
            _BINARY,
            f"--config.file={self._folder / 'alertmanager.yaml'}",
            f"--storage.path={self._folder / 'alerts'}",
            f"--web.listen-address={self.address}",
            "--cluster.listen-address=",
        ]

    def alerts(self) -> list[dict[str, Any]]:
        """Return what it was told, and still holds."""
        return list(self.client.get("/api/v2/alerts").raise_for_status().json())
