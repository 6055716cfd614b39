"""Run the matrix and print it as a table: ``python tests/matrix/run.py [WORD...]``.

Only rows with one of the words in their names are run, all if there are none; then the
table is also written into the README.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from matrix import environments
from matrix.bench import Measured, Scenarios
from matrix.judge import COLUMNS, judge
from matrix.rows import MCP, PACKAGES, ROWS, Row, groups

_TESTS = Path(__file__).parents[1]
_README = _TESTS.parent / "README.md"
_PATIENCE = 100.0
_SIDE_BY_SIDE = 2


def run_group(group: list[Row]) -> dict[str, Scenarios]:
    """Run rows in a process of their environment.

    Raises:
        Unavailable: The environment cannot be had here.
        RuntimeError: The process failed; with the end of what it said.
    """
    python = environments.python_of(group[0].environment)
    command = [str(python), str(_TESTS / "matrix" / "row.py")]
    # Nothing of the user's: settings of hangup or OpenTelemetry would change it.
    kept = ("PATH", "HOME", "TMPDIR", "LANG", "SYSTEMROOT")
    environment = {name: os.environ[name] for name in kept if name in os.environ}
    environment["PYTHONPATH"] = f"{_TESTS.parent / 'src'}{os.pathsep}{_TESTS}"
    done = subprocess.run(  # noqa: S603  our own program
        [*command, *(row.name for row in group)],
        check=False,
        capture_output=True,
        text=True,
        timeout=_PATIENCE,
        env=environment,
    )
    if done.returncode:
        why = f"{group[0].name}: exit {done.returncode}: {done.stderr[-2000:]}"
        raise RuntimeError(why)
    plain = json.loads(done.stdout.strip().splitlines()[-1])
    return {
        row: {name: Measured(**measured) for name, measured in scenarios.items()}
        for row, scenarios in plain.items()
    }


def run_all(wanted: list[list[Row]]) -> dict[str, Scenarios]:
    """Run groups of rows, some at a time.

    Raises:
        Unavailable: An environment cannot be had here.
        RuntimeError: The process of a group failed.
    """
    found: dict[str, Scenarios] = {}
    with ThreadPoolExecutor(_SIDE_BY_SIDE) as pool:
        for one in pool.map(run_group, wanted):
            found |= one
    return found


def table(found: dict[str, Scenarios]) -> str:
    """Return the matrix in Markdown."""
    lines = [
        "| client | watched by | " + " | ".join(COLUMNS) + " |",
        "|---|---" + "|---" * len(COLUMNS) + "|",
    ]
    for row in ROWS:
        if row.name not in found:
            continue
        verdicts = judge(row, found[row.name])
        cells = [_cell(row, found[row.name], verdicts, name) for name in COLUMNS]
        pinned = environments.versions(row.environment)
        named = [f"{name} {pinned[PACKAGES[name]]}" for name in row.watched_by]
        watched = " + ".join(named) or "the wire alone"
        lines.append(f"| {row.client} | {watched} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(
    row: Row, found: Scenarios, verdicts: dict[str, list[str]], column: str
) -> str:
    if column not in verdicts:
        return ""
    if verdicts[column]:
        return "**no**"
    if row.client == MCP or column not in _SCENARIOS:
        return "yes"
    return _counted(row, found[_SCENARIOS[column]])


def _counted(row: Row, measured: Measured) -> str:
    """Return what hangup counted of what the server generated."""
    if measured.unknown:
        return "unknown, and said so"
    about = "≈ " if measured.estimated else ""
    if row.threads and about:
        return f"{about}yes"  # how far it came is a matter of time
    if measured.told:
        return f"{about}{sum(measured.attributed):g} of {sum(measured.server):g}"
    return f"{about}{measured.attributed[1]:g} of {measured.server[1]:g} out"


_SCENARIOS = {
    "whole call": "whole",
    "stream": "stream",
    "stream cut": "cut stream",
    "whole call cut": "cut whole",
}


def readme_table(new: str | None = None) -> str:
    """Return the table that the README shows, after putting a new one there."""
    text = _README.read_text()
    start = text.index("\n", text.index("<!-- libraries: ")) + 1
    end = text.index("<!-- /libraries -->")
    if new is not None:
        _README.write_text(f"{text[:start]}{new}\n{text[end:]}")
        return new
    return text[start:end].strip()


def main() -> int:
    """Run, print, and return 1 if anything does not hold."""
    words = sys.argv[1:]
    wanted = [
        [row for row in group if not words or any(word in row.name for word in words)]
        for group in groups()
    ]
    found = run_all([group for group in wanted if group])
    print(table(found))  # noqa: T201  the result
    if not words:
        readme_table(table(found))
    wrong = [
        f"{row.name}: {column}: {line}"
        for row in ROWS
        if row.name in found
        for column, lines in judge(row, found[row.name]).items()
        for line in lines
    ]
    print(*wrong, sep="\n", file=sys.stderr)  # noqa: T201  likewise
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
