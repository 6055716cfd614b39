"""The environments the rows run in, built by uv from the pinned lists.

They are kept in the directory that ``HANGUP_MATRIX_ENVIRONMENTS`` names, else in one
for the user under the system's temporary directory, and built again when a list, or
the interpreter, changes. A second process that wants the same one waits for the first.
"""

from __future__ import annotations

import fcntl
import getpass
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

DIRECTORY = "HANGUP_MATRIX_ENVIRONMENTS"
LISTS = Path(__file__).parent / "requirements"
_PATIENCE = 180.0


class Unavailable(Exception):  # noqa: N818  it is no error of the program
    """An environment cannot be had here: no uv, or no network."""


def python_of(name: str) -> Path:
    """Return the interpreter of an environment, which is built if need be.

    Raises:
        Unavailable: It cannot be built on this machine.
    """
    pinned = LISTS / f"{name}.txt"
    key = hashlib.sha256(pinned.read_bytes() + sys.version.encode()).hexdigest()[:16]
    home = _home()
    place = home / f"{name}-{key}"
    python = place / "bin" / "python"
    with (home / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (place / "complete").exists():
            shutil.rmtree(place, ignore_errors=True)
            _build(place, python, pinned)
            (place / "complete").touch()
    return python


def _home() -> Path:
    named = os.environ.get(DIRECTORY)
    default = Path(tempfile.gettempdir()) / f"hangup-matrix-{getpass.getuser()}"
    home = Path(named) if named else default
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    return home


def _build(place: Path, python: Path, pinned: Path) -> None:
    # pip puts it beside the interpreter, which need not be on the path.
    beside = str(Path(sys.executable).parent)
    uv = shutil.which("uv") or shutil.which("uv", path=beside)
    if uv is None:
        raise Unavailable("this machine has no uv")
    _run(uv, "venv", "--quiet", "--python", sys.executable, str(place))
    install = (uv, "pip", "install", "--quiet", "--python", str(python))
    _run(*install, "--requirement", str(pinned))
    # Else the first row would compile it all, within its own time.
    _run(str(python), "-m", "compileall", "-q", "-j", "0", str(place / "lib"))


def _run(*command: str) -> None:
    quiet = "compileall" in command  # some packages ship files that do not compile
    try:
        subprocess.run(  # noqa: S603  commands of ours
            command, check=not quiet, capture_output=True, text=True, timeout=_PATIENCE
        )
    except subprocess.CalledProcessError as error:
        raise Unavailable(f"{command[1:3]} failed: {error.stderr[-500:]}") from None
    except subprocess.TimeoutExpired:
        raise Unavailable(f"{command[1:3]} took over {_PATIENCE:.0f} s") from None


def versions(name: str) -> dict[str, str]:
    """Return what an environment's list pins, by package."""
    pinned = {}
    for line in (LISTS / f"{name}.txt").read_text().splitlines():
        package, found, version = line.partition(";")[0].strip().partition("==")
        if found:
            pinned[package.partition("[")[0]] = version
    return pinned
