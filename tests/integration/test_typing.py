"""The public API as mypy and pyright see it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

TOP = Path(__file__).parents[2]
TYPED = TOP / "tests" / "support" / "typed" / "api.py"
# What users import, and what stands in its signatures.
PUBLIC = (
    *("hangup.errors.", "hangup.config.", "hangup.testing."),
    *("hangup.core.run.", "hangup.core.scope.", "hangup.core.token."),
    *("hangup.core.cause.", "hangup.core.deadline.", "hangup.core.absence."),
    *("hangup.servers.asgi.", "hangup.servers.wsgi.", "hangup.servers.aiohttp."),
    *("hangup.servers.grpc.", "hangup.servers.mcp.", "hangup.servers.a2a."),
    "hangup.otel.openmetrics.",
)

pytestmark = [pytest.mark.wide, pytest.mark.timeout(300)]


def pyright(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run basedpyright, which is pyright with its Node on board."""
    command = [sys.executable, "-m", "basedpyright", "--pythonpath", sys.executable]
    return subprocess.run(  # noqa: S603  our own
        [*command, *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=TOP,
        timeout=280,
        check=False,
    )


def test_what_people_write_is_right_to_pyright() -> None:
    """Every ``assert_type`` in it; mypy reads the same file with the rest of tests."""
    done = pyright("--level", "error", TYPED)
    assert done.returncode == 0, done.stdout


def test_a_wrong_type_is_an_error(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.py"
    wrong.write_text("import hangup\nhangup.run(budget='soon')\n")
    done = pyright("--level", "error", wrong)
    assert done.returncode == 1
    assert "budget" in done.stdout


def test_nothing_public_is_left_to_be_guessed() -> None:
    """No type of the public API is unknown, or could be inferred in two ways."""
    done = pyright("--verifytypes", "hangup", "--ignoreexternal")
    assert "Type completeness score" in done.stdout, done.stdout + done.stderr
    named = re.findall(r"^(hangup\.[\w.]+)$", done.stdout, re.MULTILINE)
    top = re.compile(r"hangup\.[A-Za-z_]+$")
    found = {one for one in named if one.startswith(PUBLIC) or top.match(one)}
    assert found == set()
