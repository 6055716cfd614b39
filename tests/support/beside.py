"""A package that cannot be installed beside the others, but works beside them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from support.requires import require

if TYPE_CHECKING:
    import pytest


def uv() -> str:
    """Return where uv is: pip puts it beside the interpreter, not on the path."""
    near = str(Path(sys.executable).parent)
    found = shutil.which("uv", path=near) or shutil.which("uv")
    require("uv", present=found is not None)
    return str(found)


def add_beside(monkeypatch: pytest.MonkeyPatch, folder: Path, pinned: str) -> None:
    """Install a pinned package without what it needs, and put it on the path.

    For an instrumentation whose latest release names older ones of its siblings. Skips
    the test where it cannot be had.
    """
    done = subprocess.run(  # noqa: S603  our own
        [
            *(uv(), "pip", "install", "--quiet", "--no-deps"),
            *("--python", sys.executable, "--target", str(folder), pinned),
        ],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    require(f"{pinned} ({done.stderr[-300:]})", present=done.returncode == 0)
    monkeypatch.syspath_prepend(str(folder))
