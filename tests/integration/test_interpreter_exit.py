"""An interpreter that ends with runs in flight has told of all they spent."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from hangup.otel import names

pytestmark = pytest.mark.timeout(60)
TESTS = Path(__file__).parents[1]


def ended(way: str, spent: Path) -> tuple[int, list[Any]]:
    """Let the process end; returns its status, and what it exported."""
    done = subprocess.run(  # noqa: S603  our own interpreter
        [sys.executable, "-m", "support.exiting", way],
        env={
            **os.environ,
            "SPENT": str(spent),
            "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path]),
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
    )
    said = done.stderr.replace("Task was destroyed but it is pending!", "")
    assert "hangup" not in said.lower().replace("hangup.run", ""), done.stderr
    return done.returncode, json.loads(spent.read_text())


def by(rows: list[Any], metric: str, *labels: str) -> dict[tuple[str, ...], float]:
    """The sums of a metric, those with any."""
    found: dict[tuple[str, ...], float] = {}
    for name, of, value in rows:
        if name == metric and value:
            key = tuple(str(of.get(label)) for label in labels)
            found[key] = found.get(key, 0) + value
    return found


def test_usage_is_exported_however_the_interpreter_ends(tmp_path: Path) -> None:
    """hangup closes the books before the SDK goes: its exit handler is the younger."""
    with ThreadPoolExecutor(2) as pool:
        ways = ["exit", "error"]
        both = list(pool.map(ended, ways, [tmp_path / way for way in ways]))
    assert [status for status, _ in both] == [3, 1]
    for _, rows in both:
        assert by(rows, names.TOKENS, names.RUN_NAME, names.FATE, names.CAUSE) == {
            ("thread", "sunk", "shutdown"): 10,
            ("task", "sunk", "shutdown"): 100,
            ("open", "sunk", "shutdown"): 1_000,
        }
        assert by(rows, names.RUNS, names.RUN_NAME, names.CAUSE) == {
            ("thread", "shutdown"): 1,
            ("task", "shutdown"): 1,
            ("open", "shutdown"): 1,
        }
        assert sum(by(rows, names.METERED_TOKENS, names.IN_RUN).values()) == 11_110
        # Two calls were open, and nobody will ever know what they used.
        assert sum(by(rows, names.UNKNOWN_CALLS).values()) == 2
