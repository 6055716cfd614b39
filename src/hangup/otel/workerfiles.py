"""One directory for the sums of all worker processes of an application.

Each process keeps its Prometheus samples in a file of its own and replaces it whole. A
scrape asks every living process to do so now, and adds the files up. What a process
that has ended left behind is folded into one file, so that a counter never goes back
when workers come and go. The files are the truth, never an answer of a process: a
worker that is too busy to answer, or that was killed, cannot take back what was seen.

In the directory::

    ID.json   the samples of one process
    ID.s      the socket that it is asked on; nobody listens there once it has ended
    gone.json the counters of those that have ended
    lock      held while files are read and folded
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import selectors
import socket
import time
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from hangup.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

_GONE = "gone.json"
_MOST_GONE = 50_000
"""Samples of ended processes that are kept; a label set that is newer is left out."""
_MOST_PATH = 100  # bytes that the path of a Unix socket may have, less a few

Labels = tuple[tuple[str, str], ...]
Key = tuple[str, Labels]
_Exact = float | Fraction


class Family(TypedDict):
    """One metric of one process, as it is written."""

    name: str
    type: str
    doc: str
    samples: list[Any]  # [name, [[label, value], ...], value or [over, under]]


class WorkerFiles:
    """The directory, seen from one process. Thread-safe, process-safe.

    Args:
        path: The directory; made if it is not there.

    Raises:
        ConfigError: It is somebody else's, others may write to it, or its path is too
            long for a Unix socket.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path: Path = Path(path)
        if len(os.fsencode(self.path)) > _MOST_PATH - 12:
            raise ConfigError("workers_dir", str(path), "give a shorter path")
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = self.path.stat()
        if found.st_uid != os.getuid() or found.st_mode & 0o022:
            raise ConfigError(
                "workers_dir",
                str(path),
                "give a directory that belongs to the user the workers run as, and "
                "that nobody else may write to",
            )

    def listen(self, ident: str) -> socket.socket:
        """Return the socket that a process is asked on; before its first file."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        half = self.path / f"{ident}.h"
        sock.bind(str(half))
        sock.listen(16)
        # Only now: one that is there and does not listen is of a process that ended.
        half.rename(self.path / f"{ident}.s")
        return sock

    def write(self, ident: str, families: list[Family]) -> None:
        """Replace what a process has counted so far."""
        self._replace(f"{ident}.json", {"families": families})

    def leave(self, ident: str) -> None:
        """Note that a process counts no more; its file stays until it is folded."""
        (self.path / f"{ident}.s").unlink(missing_ok=True)

    def ask(self, but: str, patience: float = 1.0) -> set[str]:
        """Have every living process but one write its file; return whose they are.

        Args:
            but: The one that has written it already.
            patience: Seconds to wait for all of them together. What one that is too
                busy has written before stands.
        """
        others = [path for path in self.path.glob("*.s") if path.stem != but]
        reached = [(path.stem, _connected(path)) for path in others]
        asked = [sock for _, sock in reached if sock is not None]
        until = time.monotonic() + patience
        with selectors.DefaultSelector() as waiting:
            for sock in asked:
                waiting.register(sock, selectors.EVENT_READ)
            # Readable is what it is once it was answered, or its process has ended.
            while waiting.get_map():
                done = waiting.select(max(0.0, until - time.monotonic()))
                for key, _ in done:
                    waiting.unregister(key.fileobj)
                if not done:
                    break
        for sock in asked:
            sock.close()
        return {name for name, sock in reached if sock is not None}

    def read(self, living: Collection[str] = ()) -> list[Family]:
        """Return the sums over every process, also those that have ended.

        Files in the directory that are not of a process are left alone.

        Args:
            living: Who is known to live: to look is to have it write again.
        """
        with self._locked():
            gone, folded = self._gone()
            sums = _Sums()
            sums.add(gone, alive=False)
            ended = []
            for path in sorted(self.path.glob("*.json")):
                if path.name == _GONE or path.stem in folded:
                    continue
                # Before it is read: who lives may write until then.
                alive = path.stem in living or _alive(path.with_suffix(".s"))
                families = _load(path).get("families")
                if not isinstance(families, list):
                    continue
                sums.add(families, alive=alive)
                if not alive:
                    ended.append((path, families))
            if ended or folded:
                self._fold(gone, ended, folded)
            for path in self.path.glob("*.s"):
                # Of processes that ended before they had counted anything.
                if (
                    path.is_socket()
                    and not path.with_suffix(".json").exists()
                    and path.stem not in living
                    and not _alive(path)
                ):
                    path.unlink(missing_ok=True)
        return sums.families()

    def _gone(self) -> tuple[list[Family], set[str]]:
        found = _load(self.path / _GONE)
        return found.get("families", []), set(found.get("folded", ()))

    def _fold(
        self,
        gone: list[Family],
        ended: list[tuple[Path, list[Family]]],
        folded: set[str],
    ) -> None:
        """Take over what ended processes left. Under the lock.

        The new sums say whose they include before those files go, so that a process
        that dies in between has counted nothing twice.
        """
        if ended:
            sums = _Sums(most=_MOST_GONE)
            sums.add(gone, alive=False)
            for _, families in ended:
                sums.add(families, alive=False)
            names = sorted({*folded, *(path.stem for path, _ in ended)})
            gone = sums.families(exact=True)
            self._replace(_GONE, {"families": gone, "folded": names})
            folded = set(names)
        for name in folded:
            for suffix in (".json", ".s"):
                (self.path / f"{name}{suffix}").unlink(missing_ok=True)
        self._replace(_GONE, {"families": gone, "folded": []})

    def _replace(self, name: str, content: object) -> None:
        half = self.path / f"{name}.{os.getpid()}.half"
        half.write_text(json.dumps(content))
        half.replace(self.path / name)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with (self.path / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def _connected(path: Path) -> socket.socket | None:
    """Return a connection to the process that listens there; None: it has ended."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.settimeout(0)
    try:
        sock.connect(str(path))
    except BlockingIOError:  # more ask it than it can take: alive
        return sock
    except OSError:
        sock.close()
        return None
    return sock


def _alive(path: Path) -> bool:
    sock = _connected(path)
    if sock is None:
        return False
    sock.close()
    return True


def _load(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):  # folded by another process, or not ours
        return {}
    return found if isinstance(found, dict) else {}


def _exact(value: float | list[int]) -> _Exact:
    """Return a value as it was written: a number, or numerator and denominator."""
    if isinstance(value, list):
        return Fraction(*value)
    if isinstance(value, int) or not math.isfinite(value):
        return value
    number = Fraction(value)
    return number.numerator if number.denominator == 1 else number


def _told(value: _Exact) -> _Exact | list[int]:
    if isinstance(value, Fraction):
        return [value.numerator, value.denominator]
    return value


# Sums of gauges that mean something; of these others the largest does.
_LARGEST = ("hangup_info", "hangup_run_stopping_oldest_seconds", "target_info")
_SMALLEST = ("hangup_bus_up",)
_KEPT = ("counter", "histogram")


class _Sums:
    """Adds up families exactly: the order and the number of steps change nothing.

    Sums of floats would go back by their last bit when a process ends, and to whoever
    scrapes that is a reset.
    """

    def __init__(self, most: int | None = None) -> None:
        self._most = most
        self._heads: dict[str, tuple[str, str]] = {}
        self._values: dict[str, dict[Key, _Exact]] = {}
        self._count = 0

    def add(self, families: Iterable[Family], *, alive: bool) -> None:
        for family in families:
            if not alive and family["type"] not in _KEPT:
                continue
            name = family["name"]
            self._heads.setdefault(name, (family["type"], family["doc"]))
            values = self._values.setdefault(name, {})
            for sample, labels, value in family["samples"]:
                key = (sample, tuple((label, of) for label, of in labels))
                self._put(values, key, _exact(value))

    def _put(self, values: dict[Key, _Exact], key: Key, value: _Exact) -> None:
        before = values.get(key)
        if before is None:
            if self._most is not None and self._count >= self._most:
                return
            self._count += 1
            values[key] = value
        elif key[0] in _LARGEST:
            values[key] = max(before, value)
        elif key[0] in _SMALLEST:
            values[key] = min(before, value)
        else:
            values[key] = before + value

    def families(self, *, exact: bool = False) -> list[Family]:
        """Return the sums; ``exact`` where they are to be added to again."""
        told = _told if exact else float
        return [
            {
                "name": name,
                "type": self._heads[name][0],
                "doc": self._heads[name][1],
                "samples": [
                    [sample, [list(pair) for pair in labels], told(value)]
                    for (sample, labels), value in values.items()
                ],
            }
            for name, values in self._values.items()
        ]
