"""Starts a command with a probe inside, lets it come up, and ends it again."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from hangup.otel.diagnosis import PULSE, VARIABLE

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

# Runs in every Python that the command starts, before anything else of it. Under
# opentelemetry-instrument another sitecustomize comes first and this one is never run:
# there the entry point beside it is.
_SITECUSTOMIZE: Final = """\
import os
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec

here = os.path.dirname(os.path.abspath(__file__))
rest = [path for path in sys.path if os.path.abspath(path or ".") != here]
spec = PathFinder.find_spec("sitecustomize", rest)
if spec is not None and spec.loader is not None:
    module = module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)
try:
    from hangup.otel.diagnosis import start_if_asked
except ImportError:
    pass  # a Python without hangup: the doctor will see that nobody answers
else:
    start_if_asked()
"""
_METADATA: Final = "Metadata-Version: 2.1\nName: hangup-doctor-probe\nVersion: 1\n"
_ENTRY_POINTS: Final = (
    "[opentelemetry_post_instrument]\n"
    "hangup_doctor = hangup.otel.diagnosis:start_if_asked\n"
)
_POLL: Final = 0.4  # seconds between two looks
_QUIET: Final = 3  # so many looks in a row with nothing new and idle: it has come up
_SETTLED: Final = 12  # so many with nothing new, and busy: it is at work
_IDLE: Final = 0.05  # of one processor
_ASKING: Final = 20.0  # seconds to answer: it may have to import what it answers with
_ENDING: Final = 10.0  # seconds it may take to end after SIGTERM
_ENDING_TOO: Final = 2.0  # seconds for those that it has left behind
_TAIL: Final = 20  # lines of its output that are shown when it failed


class CouldNotLookError(Exception):
    """Nothing could be found out; the message says why and what to do."""


class Command:
    """The command, running; a context manager that ends it.

    Args:
        words: The command and its arguments.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self._words = list(words)
        self._room = tempfile.TemporaryDirectory(prefix="hangup-")
        self.directory = Path(self._room.name)
        self._log = tempfile.TemporaryFile("w+b")  # noqa: SIM115  as long as this
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        """Start it.

        Raises:
            CouldNotLookError: There is no such command.
        """
        path = os.environ.get("PYTHONPATH", "")
        probe = _lay_probe(self.directory / "probe")
        environment = {
            **os.environ,
            VARIABLE: str(self.directory),
            "PYTHONPATH": f"{probe}{os.pathsep}{path}" if path else str(probe),
        }
        try:
            self._process = subprocess.Popen(  # noqa: S603  what the user asked for
                self._words,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                start_new_session=True,
            )
        except OSError as error:
            self._close()
            raise CouldNotLookError(
                f"{self._words[0]} cannot be started: {error.strerror}"
            ) from error
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End it and everything that it has started."""
        process = self._process
        if process is not None:
            if process.poll() is None:
                process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_ENDING)
            _end_group(process.pid)
            process.wait()
        self._close()

    def _close(self) -> None:
        self._log.close()
        self._room.cleanup()

    @property
    def status(self) -> int | None:
        """Its exit status; None while it runs."""
        return None if self._process is None else self._process.poll()

    @property
    def output(self) -> str:
        """The last lines of what it said."""
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").splitlines()
        return "\n".join(lines[-_TAIL:])

    def come_up(self, patience: float) -> None:
        """Wait until its processes import nothing more and are idle, or until it ends.

        One that is at work from the start is never idle: there it takes longer.

        Args:
            patience: Seconds after which it is looked at as it is.
        """
        if self._process is None:
            return
        asked = time.monotonic()
        until = asked + patience
        imported: dict[int, int] = {}
        worked: dict[int, float] = {}
        quiet = settled = 0
        while time.monotonic() < until and self.status is None:
            time.sleep(_POLL)
            since, asked = asked, time.monotonic()
            pulses = _asked(self.directory, PULSE)
            now = {one["pid"]: one["modules"] for one in pulses}
            # Also those that do not answer yet: workers that are about to import.
            cpu = _session(self._process.pid) or {
                one["pid"]: one["cpu"] for one in pulses
            }
            enough = _IDLE * (asked - since)
            busy = {
                pid for pid, spent in cpu.items() if spent - worked.get(pid, 0) > enough
            }
            same = now == imported and cpu.keys() == worked.keys()
            still = bool(now) and same and busy <= now.keys()
            settled = settled + 1 if still else 0
            quiet = quiet + 1 if still and not busy else 0
            if quiet >= _QUIET or settled >= _SETTLED:
                return
            imported, worked = now, cpu


def _session(leader: int) -> dict[int, float]:
    """Return the seconds that each process of a session has worked; Linux only.

    Empty where the system does not say.
    """
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            # After the name, which may hold anything: proc(5), from the third field on.
            fields = path.read_text("utf-8", "replace").rpartition(")")[2].split()
            if int(fields[3]) == leader:
                ticks = int(fields[11]) + int(fields[12])
                found[int(path.parent.name)] = ticks / os.sysconf("SC_CLK_TCK")
    return found


def _end_group(group: int) -> None:
    """End whoever is left of a session that is ours alone: a shell does not tell."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGTERM)
        until = time.monotonic() + _ENDING_TOO
        while time.monotonic() < until:
            os.killpg(group, 0)
            time.sleep(_POLL / 10)
        os.killpg(group, signal.SIGKILL)


def _lay_probe(directory: Path) -> Path:
    """Write what has every Python of the command start the probe."""
    about = directory / "hangup_doctor_probe-1.dist-info"
    about.mkdir(parents=True)
    (directory / "sitecustomize.py").write_text(_SITECUSTOMIZE)
    (about / "METADATA").write_text(_METADATA)
    (about / "entry_points.txt").write_text(_ENTRY_POINTS)
    return directory


def ask_all(directory: Path) -> list[dict[str, Any]]:
    """Return the facts of every process that listens in the directory, or did."""
    facts = {}
    for path in sorted(directory.glob("*.json")):
        with contextlib.suppress(OSError, ValueError):
            told = json.loads(path.read_bytes())
            facts[told["pid"]] = told
    for told in _asked(directory, b"facts"):
        facts[told["pid"]] = told
    return list(facts.values())


def _asked(directory: Path, question: bytes) -> list[dict[str, Any]]:
    answers = [_ask(path, question) for path in sorted(directory.glob("*.sock"))]
    return [answer for answer in answers if answer is not None]


def _ask(path: Path, question: bytes) -> dict[str, Any] | None:
    """Return what the process says that listens there; None where none does."""
    parts = []
    try:
        with socket.socket(socket.AF_UNIX) as line:
            line.settimeout(_ASKING)
            line.connect(str(path))
            line.sendall(question + b"\n")
            while part := line.recv(1 << 16):
                parts.append(part)
        told: dict[str, Any] = json.loads(b"".join(parts))
    except (OSError, ValueError):
        return None  # it has ended, or is just about to
    return told
