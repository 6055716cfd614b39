"""Workers of a queue, each in a process of its own, and what they have booked."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from support.books import DIRECTORY, Books

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

TESTS = Path(__file__).parents[1]
_PATIENCE = 90.0


class Worker:
    """A worker in a process of its own.

    Attributes:
        books: What its processes have booked.
        process: The process, once it was started.
    """

    def __init__(
        self,
        command: list[str],
        directory: Path,
        environment: Mapping[str, str],
        *,
        ready: str,
    ) -> None:
        directory.mkdir()
        books = directory / "books"
        books.mkdir()
        self.books = Books(books)
        self._command, self._ready = command, ready
        self._log = directory / "log"
        path = [str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]
        self._environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(path),
            DIRECTORY: str(books),
            **environment,
        }
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def said(self) -> str:
        return self._log.read_text() if self._log.exists() else ""

    def start(self) -> None:
        """Start it; it may take a while until it serves."""
        with self._log.open("ab") as out:
            self.process = subprocess.Popen(  # noqa: S603  our own interpreter
                [sys.executable, "-m", *self._command],
                env=self._environment,
                stdout=out,
                stderr=out,
            )

    def wait(self) -> None:
        """Wait until it serves."""
        assert self.process is not None
        deadline = time.monotonic() + _PATIENCE
        while self._ready not in self.said:
            assert self.process.poll() is None, self.said
            assert time.monotonic() < deadline, self.said
            time.sleep(0.05)

    def kill(self) -> None:
        """End it as ``kill -9`` does."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def end(self) -> None:
        """End it in good order."""
        if self.process is None or self.process.poll() is not None:
            return
        self.process.terminate()
        try:
            self.process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@contextlib.contextmanager
def working(*workers: Worker) -> Iterator[None]:
    """Start workers at once, and end them with the block."""
    try:
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.wait()
        yield
    finally:
        for worker in workers:
            if worker.process is not None:
                worker.process.terminate()
        for worker in workers:
            worker.end()


def celery_worker(  # noqa: PLR0913  keywords
    directory: Path,
    broker: str,
    model: str,
    *,
    pool: str = "solo",
    queues: str = "celery",
    environment: Mapping[str, str] | None = None,
) -> Worker:
    """A Celery worker of ``support.celery_worker``, not started yet."""
    return Worker(
        [
            *("celery", "-A", "support.celery_worker:app", "worker"),
            *("--pool", pool, "--concurrency", "1", "--loglevel", "INFO"),
            *("-Q", queues, "-n", f"{directory.name}@%h"),
            *("--without-gossip", "--without-mingle"),
        ],
        directory,
        {"BROKER": broker, "MODEL": model, **(environment or {})},
        ready=" ready.",
    )


def docket_worker(
    directory: Path,
    url: str,
    model: str,
    environment: Mapping[str, str] | None = None,
) -> Worker:
    """A docket worker of ``support.docket_worker``, not started yet."""
    return Worker(
        ["support.docket_worker"],
        directory,
        {"BROKER": url, "MODEL": model, **(environment or {})},
        ready="ready.",
    )
