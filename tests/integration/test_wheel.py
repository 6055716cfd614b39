"""The wheel alone, in a clean environment: what it brings, what its import takes."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.beside import uv

pytestmark = [pytest.mark.timeout(110)]

TOP = Path(__file__).parents[2]
MOST = 0.6
"""What ``import hangup`` may take when the SDK is there already, in imports of that.

The goal is 60 ms; but how long 60 ms are depends on the machine, and this does not.
"""
ROUNDS = 7

# The SDK's import, then ours, then all that instrumenting needs. In CPU time: what else
# the machine does has no part in it.
_MEASURE = """
import json, sys, time
began = time.process_time()
import opentelemetry.sdk.metrics.export, opentelemetry.sdk.trace.export
import opentelemetry.sdk._logs.export
sdk = time.process_time()
before = set(sys.modules)
import hangup
ours = time.process_time()
import hangup.otel.instrumentor
found = {name.partition(".")[0] for name in set(sys.modules) - before}
print(json.dumps({
    "sdk": sdk - began,
    "ours": ours - sdk,
    "others": sorted(found - set(sys.stdlib_module_names) - {"hangup"}),
}))
"""


def _run(*command: str | Path) -> str:
    done = subprocess.run(  # noqa: S603  tools of ours
        [str(one) for one in command], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clean environment of this Python, with the wheel and what it needs."""
    where = tmp_path_factory.mktemp("clean")
    _run(uv(), "build", "--wheel", "--out-dir", where, TOP)
    [wheel] = where.glob("hangup-*.whl")
    _run(uv(), "venv", "--python", sys.executable, where / "env")
    python = where / "env" / "bin" / "python"
    install = (uv(), "pip", "install", "--compile-bytecode", "--python", python)
    _run(*install, wheel)
    return python


def _measured(python: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(_run(python, "-I", "-c", _MEASURE))
    return found


def test_it_brings_nothing_but_opentelemetry(python: Path) -> None:
    listed = json.loads(_run(uv(), "pip", "list", "--python", python, "--format=json"))
    names = {one["name"] for one in listed}
    assert "hangup" in names
    direct = {name for name in names if name.startswith("opentelemetry-")}
    # What OpenTelemetry itself needs, by its own word.
    needed = {"packaging", "typing-extensions", "wrapt", "importlib-metadata", "zipp"}
    assert names - direct - needed == {"hangup"}
    assert set(_measured(python)["others"]) <= {"opentelemetry", "packaging", "wrapt"}


def test_it_is_imported_in_a_moment(python: Path) -> None:
    """In the middle of some: what disturbs the machine disturbs both.

    Says what it measured (``pytest -s``).
    """
    rounds = [_measured(python) for _ in range(ROUNDS)]
    ours = min(one["ours"] for one in rounds)
    ratio = statistics.median(one["ours"] / one["sdk"] for one in rounds)
    said = f"import hangup: {ours * 1e3:.0f} ms, {ratio:.2f} of the SDK's own import"
    sys.stdout.write(said + "\n")
    assert ratio < MOST, said
