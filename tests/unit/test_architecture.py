"""The house: imports one way down, small rooms, labelled doors."""

from __future__ import annotations

import ast
import dataclasses
import subprocess
import sys
import types
from pathlib import Path

import pytest

import hangup
from hangup.config import Settings

TOP = Path(__file__).parents[2]
SRC = TOP / "src"
PACKAGE = SRC / "hangup"
MOST_LINES = 400

# What each part may import of the others, beside itself.
BASE = {"errors"}
CORE = BASE | {"config", "readers", "core"}
SPEND = CORE | {"spend"}
OTEL = SPEND | {"otel"}
ADAPTERS = OTEL | {"servers", "clients"}
MAY_IMPORT = {
    "errors": set(),
    "readers": BASE,
    "config": BASE | {"readers"},
    "core": CORE,
    "spend": SPEND,
    "bus": CORE,
    "otel": OTEL,
    "api": OTEL,
    "servers": OTEL,
    "clients": OTEL,
    "testing": OTEL,
    "": CORE | {"api"},
    "demo": ADAPTERS | {"", "api", "report"},
    "report": ADAPTERS | {"", "api"},
    "cli": ADAPTERS | {"", "api", "demo", "report", "bus"},
}
STANDARD_LIBRARY_ONLY = ("errors", "readers", "config", "core", "spend", "bus")
ON_REQUEST = ("hangup.servers", "hangup.clients", "hangup.demo", "hangup.cli")

MODULES = {
    ".".join(path.relative_to(SRC).with_suffix("").parts).removesuffix(".__init__"): (
        path
    )
    for path in sorted(PACKAGE.rglob("*.py"))
}


def part_of(module: str) -> str:
    """`hangup.core.run` is of core, `hangup` itself of ""."""
    return module.split(".")[1] if "." in module else ""


def imports(module: str) -> set[str]:
    """Every module that this one imports, at any level, by its full name."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(MODULES[module].read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} has a relative import"
            assert node.module is not None
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                found.add(name if name in MODULES else node.module)
    return found


@pytest.mark.parametrize("module", MODULES)
def test_imports_point_one_way(module: str) -> None:
    part = part_of(module)
    allowed = MAY_IMPORT[part] | {part}
    for name in imports(module):
        if name == "hangup" or name.startswith("hangup."):
            assert part_of(name) in allowed, f"{module} imports {name}"


@pytest.mark.parametrize(
    "module", [one for one in MODULES if part_of(one) in STANDARD_LIBRARY_ONLY]
)
def test_the_inside_needs_the_standard_library_only(module: str) -> None:
    for name in imports(module):
        top = name.split(".")[0]
        if module == "hangup.bus.redis" and top == "redis":
            continue  # what that file is for
        assert top == "hangup" or top in sys.stdlib_module_names, (
            f"{module} imports {name}"
        )


def adapter_of(module: str) -> str:
    """`hangup.servers._asgi_http` is of asgi; `_common_*` serve every adapter."""
    return module.split(".")[2].lstrip("_").split("_")[0]


@pytest.mark.parametrize(
    "module", [one for one in MODULES if one.startswith("hangup.servers.")]
)
def test_server_adapters_do_not_import_each_other(module: str) -> None:
    for name in imports(module):
        if name.startswith("hangup.servers."):
            allowed = (adapter_of(module), "common")
            assert adapter_of(name) in allowed, f"{module} imports {name}"


def test_import_hangup_loads_no_adapter_and_no_third_party() -> None:
    """The core works on plain asyncio, without OpenTelemetry and without a server."""
    loaded = subprocess.run(
        [sys.executable, "-c", "import hangup, sys; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert "hangup.core.run" in loaded
    assert [name for name in loaded if name.startswith("opentelemetry")] == []
    assert [name for name in loaded if name.startswith(ON_REQUEST)] == []
    assert "hangup.otel" not in loaded


@pytest.mark.parametrize(
    "path",
    [
        path
        for folder in (PACKAGE, TOP / "dashboards")
        for path in sorted(folder.rglob("*.py"))
    ],
    ids=lambda path: str(path.relative_to(TOP)),
)
def test_no_file_is_too_long_to_read(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= MOST_LINES


@pytest.mark.parametrize("module", MODULES)
def test_every_module_says_what_it_is_for(module: str) -> None:
    doc = ast.get_docstring(ast.parse(MODULES[module].read_text()))
    assert doc, f"{module} has no docstring"
    assert doc.splitlines()[0].endswith((".", ":", "?")), doc.splitlines()[0]


def test_the_front_door_lists_what_is_behind_it() -> None:
    public = {
        name
        for name, value in vars(hangup).items()
        if not name.startswith("_")
        and not isinstance(value, types.ModuleType)
        and name != "annotations"
    }
    assert set(hangup.__all__) == public | {"__version__"}
    assert list(hangup.__all__) == sorted(set(hangup.__all__))


def test_every_public_name_says_what_it_does() -> None:
    for name in set(hangup.__all__) - {"__version__"}:
        assert getattr(hangup, name).__doc__, name


def test_every_setting_says_what_it_does() -> None:
    for spec in dataclasses.fields(Settings):
        assert spec.metadata["doc"], spec.name
