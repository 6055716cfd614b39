"""The environment that has the agent frameworks, and processes in it."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from matrix import environments
from support.requires import require

ROOT = Path(__file__).parents[2]
_PATIENCE = 60.0
NOISE = (
    "Traceback",
    "never retrieved",
    "never awaited",
    "Failed to detach context",
    "was destroyed but it is pending",
    "different task",
    "callback: ",
)


def interpreter() -> Path:
    """Return the Python that has the frameworks; without one the test is skipped."""
    try:
        return environments.python_of("frameworks")
    except environments.Unavailable as reason:
        require(f"environment for it ({reason})", present=False)
        raise


def variables() -> dict[str, str]:
    """Return the environment variables of a process in it."""
    # Nothing of the user's: settings of hangup or OpenTelemetry would change it.
    kept = ("PATH", "HOME", "TMPDIR", "LANG", "SYSTEMROOT")
    found = {name: os.environ[name] for name in kept if name in os.environ}
    places = (str(ROOT / place) for place in ("src", "tests", "examples"))
    return found | {"PYTHONPATH": os.pathsep.join(places)}


def told_by(program: str) -> Any:
    """Run one of our programs in it, and return the JSON that it prints last."""
    done = subprocess.run(  # noqa: S603  our own program
        [interpreter(), "-P", ROOT / "tests" / "support" / program],
        check=False,
        capture_output=True,
        text=True,
        timeout=_PATIENCE,
        env=variables(),
    )
    assert done.returncode == 0, done.stderr
    assert not [noise for noise in NOISE if noise in done.stderr], done.stderr
    return json.loads(done.stdout.strip().splitlines()[-1])
