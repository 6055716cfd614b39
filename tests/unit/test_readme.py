"""The README is run, and its tables are generated: prose cannot drift from the code."""

from __future__ import annotations

import ast
import dataclasses
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import hangup
from hangup import config
from hangup.otel import names
from hangup.otel.policyfile import parse
from hangup.spend.pricefile import read_price_file

if TYPE_CHECKING:
    from collections.abc import Iterator

README = Path(__file__).parents[2] / "README.md"
_ON_SPANS_TOO = ("CAUSE", "MODEL", "RUN_NAME", "MODE", "DECISION")
_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks() -> list[str]:
    return _BLOCK.findall(README.read_text())


def settings_table() -> str:
    """Render every setting: variable, default, meaning."""
    rows = ["| variable | default | meaning |", "|---|---|---|"]
    for spec in dataclasses.fields(config.Settings):
        default = getattr(config.Settings(), spec.name)
        shown = "" if default in (None, (), {}) else f"`{default}`"
        variable = f"`{config.ENV_PREFIX}{spec.name.upper()}`"
        rows.append(f"| {variable} | {shown} | {spec.metadata['doc']} |")
    return "\n".join(rows)


def _documented() -> Iterator[tuple[str, str, str]]:
    """Each constant of ``otel.names`` that is a text: name, value, the docstring."""
    tree = ast.parse(Path(names.__file__).read_text())
    for node, doc in zip(tree.body, tree.body[1:], strict=False):
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        value = getattr(names, node.target.id)
        if isinstance(value, str) and isinstance(doc, ast.Expr):
            text = " ".join(ast.literal_eval(doc.value).replace("``", "`").split())
            yield node.target.id, value, text


def metrics_table() -> str:
    """Render every metric of ``otel.names`` with the docstring under its constant."""
    rows = ["| metric | unit and meaning |", "|---|---|"]
    for name, value, text in _documented():
        if name == "FATE":
            break
        if value.startswith("hangup."):
            rows.append(f"| `{value}` | {text} |")
    return "\n".join(rows)


def attributes_table() -> str:
    """Render every label and attribute, likewise."""
    rows = ["| attribute | where | meaning |", "|---|---|---|"]
    where = ""
    for name, value, text in _documented():
        where = {
            "FATE": "metrics",
            "RUN_ID": "spans",
            "EVENT_ABANDONED": "span event",
            "EVENT_CLOSED": "log event",
            "JOINED": "log event",
        }.get(name, where)
        if where:
            also = ", spans" if name in _ON_SPANS_TOO else ""
            rows.append(f"| `{value}` | {where}{also} | {text} |")
    return "\n".join(rows)


@pytest.mark.parametrize(
    ("section", "table"),
    [
        ("settings", settings_table()),
        ("metrics", metrics_table()),
        ("attributes", attributes_table()),
    ],
)
def test_the_table_is_the_one_the_code_makes(section: str, table: str) -> None:
    """Run this file as a script to write the tables anew."""
    text = README.read_text()
    start = text.index("\n", text.index(f"<!-- {section}: ")) + 1
    assert text[start : text.index(f"<!-- /{section} -->")].strip() == table


def test_the_price_file_is_one(tmp_path: Path) -> None:
    [block] = re.findall(
        r"^```toml\n(.*?)^```$", README.read_text(), re.MULTILINE | re.DOTALL
    )
    path = tmp_path / "prices.toml"
    path.write_text(block)
    prices = read_price_file(str(path))
    assert prices.version.startswith("contract of 2026-11@")
    assert prices.model("gpt-4o-2024-08-06") is not None


def test_the_policy_file_is_one() -> None:
    [block] = re.findall(
        r"^```yaml\n(.*?)^```$", README.read_text(), re.MULTILINE | re.DOTALL
    )
    rules = parse("policy.yaml", block.encode())
    [rule] = rules.rules
    assert (rule.mode, rule.share) == (config.Mode.ENFORCE, 5)


def test_every_python_block_runs(tmp_path: Path) -> None:
    """In order and in one process, as somebody who copies them would."""
    script = tmp_path / "readme.py"
    script.write_text("\n".join(blocks()))
    done = subprocess.run(  # noqa: S603  our own text
        [sys.executable, "-W", "error", str(script)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "30 s left" in done.stdout
    assert "notes on SIGHUP, part 2" in done.stdout
    assert "was abandoned after 0 s, cause deadline" in done.stdout


def test_the_api_table_names_what_exists() -> None:
    """Every ``hangup.name`` in the README is public."""
    found = set(re.findall(r"hangup\.([a-z_]+)\(", README.read_text()))
    assert found <= set(hangup.__all__)


def _write() -> None:
    text = README.read_text()
    for section, table in (
        ("settings", settings_table()),
        ("metrics", metrics_table()),
        ("attributes", attributes_table()),
    ):
        start = text.index("\n", text.index(f"<!-- {section}: ")) + 1
        end = text.index(f"<!-- /{section} -->")
        text = f"{text[:start]}{table}\n{text[end:]}"
    README.write_text(text)


if __name__ == "__main__":
    _write()
    sys.exit(0)
