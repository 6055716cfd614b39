"""Every library the facts name, with its real packages, against the model server.

One case a row and column; ``python tests/matrix/run.py`` prints the table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from matrix import environments
from matrix.judge import columns_of, judge
from matrix.rows import ROWS, groups, row_named
from matrix.run import readme_table, run_all, table
from support.requires import require

if TYPE_CHECKING:
    from matrix.bench import Scenarios

_CASES = [(row.name, column) for row in ROWS for column in columns_of(row)]
# All rows run before the first case, and the environments may have to be built.
pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module")
def found() -> dict[str, Scenarios]:
    try:
        return run_all(groups())
    except environments.Unavailable as reason:
        require(f"environment for it ({reason})", present=False)
        raise


@pytest.mark.parametrize(
    ("row", "column"),
    [pytest.param(row, column, id=f"{row} - {column}") for row, column in _CASES],
)
def test_the_number_is_right(
    found: dict[str, Scenarios], row: str, column: str
) -> None:
    assert judge(row_named(row), found[row])[column] == []


def test_the_table_has_every_row_and_all_of_it_holds(
    found: dict[str, Scenarios],
) -> None:
    lines = table(found).splitlines()[2:]
    assert len(lines) == len(ROWS)
    assert not [line for line in lines if "**no**" in line]


def test_the_readme_shows_this_table(found: dict[str, Scenarios]) -> None:
    assert readme_table() == table(found)


@pytest.mark.parametrize("package", ["openai", "opentelemetry-sdk", "httpx"])
def test_versions_stand_in_the_pinned_lists(package: str) -> None:
    for environment in {row.environment for row in ROWS}:
        assert environments.versions(environment)[package]
