"""Redis and PostgreSQL, the real servers, started for one test.

They are Debian's packages ``redis-server`` and ``postgresql``, each in a directory of
its own (:func:`directory`). Where they are missing a test is skipped, and fails in CI.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

from support.requires import require

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

_PATIENCE = 30.0
_USER = "postgres"


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)  # noqa: S603  ours


@contextlib.contextmanager
def directory() -> Iterator[Path]:
    """A directory with a short name, for sockets, that another user may look into."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name)
        path.chmod(0o755)
        yield path


class Store:
    """A server that listens on a Unix socket in ``directory``; a context manager."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None

    def _command(self) -> list[str]:
        raise NotImplementedError

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(  # noqa: S603  ours
            self._command(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        deadline = time.monotonic() + _PATIENCE
        while not self._listens():
            assert self._process.poll() is None, "the server ended"
            assert time.monotonic() < deadline, "the server does not listen"
            time.sleep(0.02)
        return self

    def _listens(self) -> bool:
        raise NotImplementedError

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)  # PostgreSQL: hang up, then end
            self._process.wait(_PATIENCE)


class Redis(Store):
    """A Redis that keeps nothing.

    Attributes:
        socket: The path of its socket.
    """

    def __init__(self, directory: Path) -> None:
        require("redis-server")
        super().__init__(directory)
        self.socket = directory / "redis.sock"

    def _command(self) -> list[str]:
        return [
            *("redis-server", "--port", "0", "--unixsocket", str(self.socket)),
            *("--save", "", "--appendonly", "no", "--dir", str(self._directory)),
        ]

    def _listens(self) -> bool:
        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(str(self.socket)) == 0


class Postgres(Store):
    """A PostgreSQL with a new cluster.

    Attributes:
        host: The directory of its socket: what clients take as the host.
        user: Who may do everything, without a password.
    """

    def __init__(self, directory: Path) -> None:
        found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
        tool = shutil.which("initdb")
        require("postgresql", present=bool(found or tool))
        super().__init__(directory)
        self._bin = found[-1].parent if found else Path(tool or "").parent
        self._data = directory / "data"
        self.host = str(directory)
        self.user = "postgres"

    def _as_user(self, *command: str) -> list[str]:
        """PostgreSQL does not start for root."""
        if os.geteuid():
            return list(command)
        return ["setpriv", f"--reuid={_USER}", "--clear-groups", *command]

    def _command(self) -> list[str]:
        if not os.geteuid():
            shutil.chown(self._directory, _USER)
        initdb = str(self._bin / "initdb")
        options = ["-D", str(self._data), "-U", self.user, "-A", "trust", "--no-sync"]
        _run(*self._as_user(initdb, *options))
        return self._as_user(
            *(str(self._bin / "postgres"), "-D", str(self._data)),
            *("-k", self.host, "-h", "", "-F", "-c", "max_connections=200"),
        )

    def _listens(self) -> bool:
        # It listens before it can answer.
        ask = [str(self._bin / "pg_isready"), "-q", "-h", self.host]
        return subprocess.run(ask, check=False).returncode == 0  # noqa: S603  ours
