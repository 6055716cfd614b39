"""Redis as a bus: one that restarts with or without its data, a cluster, and owners.

An owner is a process with live runs on the bus, see ``bus_owner``.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import redis
from support.processes import end
from support.requires import require
from support.stores import Store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

PATIENCE = 60.0


def free_port() -> int:
    """A port of loopback that nothing listens on, nor on that 10,000 above it.

    There the node of a cluster speaks to the others.
    """
    while True:
        with socket.socket() as sock, socket.socket() as above:
            sock.bind(("127.0.0.1", 0))
            port: int = sock.getsockname()[1]
            with contextlib.suppress(OSError, OverflowError):
                above.bind(("127.0.0.1", port + 10_000))
                return port


def eventually(true: Callable[[], object], patience: float = PATIENCE) -> None:
    """Wait for what another process brings about."""
    until = time.monotonic() + patience
    while not true():
        assert time.monotonic() < until
        time.sleep(0.01)


class BusServer(Store):
    """A Redis on a port that it keeps, and that writes down every word.

    Attributes:
        port: Where.
        url: The same, as a setting.
    """

    def __init__(self, directory: Path, *options: str) -> None:
        require("redis-server")
        super().__init__(directory)
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}"
        self._options = options

    def _command(self) -> list[str]:
        return [
            *("redis-server", "--port", str(self.port), "--bind", "127.0.0.1"),
            *("--save", "", "--appendonly", "yes", "--appendfsync", "always"),
            *("--dir", str(self._directory), *self._options),
        ]

    def client(self) -> Any:
        """A client of one's own."""
        return redis.Redis(port=self.port, decode_responses=True, protocol=2)

    def _listens(self) -> bool:
        try:
            with contextlib.closing(self.client()) as client:
                return bool(client.ping())
        except redis.RedisError:
            return False

    def in_cluster(self) -> bool:
        """Whether its cluster is whole, as far as it knows."""
        with contextlib.closing(self.client()) as client:
            about: Any = client.execute_command("CLUSTER", "INFO")
            return "cluster_state:ok" in str(about)

    def dies(self, *, keeping: bool = True) -> None:
        """Kill it as the kernel would.

        Args:
            keeping: Whether its data is there when it is back.
        """
        assert self._process is not None
        self._process.kill()
        self._process.wait(PATIENCE)
        self._process = None
        if not keeping:
            shutil.rmtree(self._directory / "appendonlydir")

    def comes_back(self) -> None:
        """Start it again, on the same port."""
        self.__enter__()


class Cluster:
    """Three nodes, each with a third of the slots; a context manager."""

    def __init__(self, directory: Path) -> None:
        require("redis-cli")
        self.nodes = []
        for number in range(3):
            place = directory / str(number)
            place.mkdir()
            options = ("--cluster-enabled", "yes", "--cluster-node-timeout", "2000")
            self.nodes.append(BusServer(place, *options))
        # Any node will do.
        self.url = self.nodes[0].url

    def __enter__(self) -> Self:
        for node in self.nodes:
            node.__enter__()
        where = [f"127.0.0.1:{node.port}" for node in self.nodes]
        command = ["redis-cli", "--cluster", "create", *where, "--cluster-yes"]
        subprocess.run(command, check=True, capture_output=True)  # noqa: S603  ours
        for node in self.nodes:
            eventually(node.in_cluster)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for node in self.nodes:
            node.__exit__(kind, error, trace)


class Owner:
    """A process with live runs; a context manager.

    Args:
        url: The bus, as this process reaches it.
        runs: How many runs it opens at first.
        program: What it does, see ``bus_owner``.
        environment: More of it.
    """

    def __init__(
        self,
        url: str,
        runs: int = 0,
        program: str = "runs",
        environment: dict[str, str] | None = None,
    ) -> None:
        tests = Path(__file__).parents[1]
        paths = [str(tests), str(tests.parent / "src")]
        self._environment = {
            **os.environ,
            **(environment or {}),
            "PYTHONPATH": os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")]),
            "HANGUP_BUS_URL": url,
        }
        self._command = [sys.executable, str(Path(__file__).with_name("bus_owner.py"))]
        self._command += [program, str(runs)]
        self._process: subprocess.Popen[bytes] | None = None
        self._said: queue.Queue[dict[str, Any]] = queue.Queue()
        self._thread = threading.Thread(target=self._listen, daemon=True)

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(  # noqa: S603  our own interpreter
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=self._environment,
            start_new_session=True,
        )
        self._thread.start()
        return self

    def _listen(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._said.put(json.loads(line))

    def hears(self, patience: float = PATIENCE) -> dict[str, Any]:
        """Return what it says next."""
        return self._said.get(timeout=patience)

    def told(self) -> Iterator[dict[str, Any]]:
        """Return what it has said so far, without waiting."""
        with contextlib.suppress(queue.Empty):
            while True:
                yield self._said.get_nowait()

    def tell(self, **words: object) -> None:
        """Tell it something; what it answers comes from ``hears``."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(words).encode() + b"\n")
        self._process.stdin.flush()

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        process = self._process
        end(process, PATIENCE)
        if process is not None:
            with contextlib.suppress(ProcessLookupError):  # nobody is left of it
                os.killpg(process.pid, signal.SIGKILL)
        self._thread.join(PATIENCE)
        if process is not None and process.stdin and process.stdout:
            process.stdin.close()
            process.stdout.close()


def command(url: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run ``hangup`` in a process of its own."""
    program = "from hangup.cli import main; main()"
    return subprocess.run(  # noqa: S603  our own interpreter
        [sys.executable, "-c", program, *arguments],
        env={**os.environ, "HANGUP_BUS_URL": url},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
