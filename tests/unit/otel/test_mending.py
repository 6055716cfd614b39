"""Libraries are mended when they are imported, and never imported for it."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

import pytest

from hangup.otel.mending import Mending

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from hangup.otel.patch import Patch

NAME = "hangup_test_library"


@pytest.fixture
def imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[], type[Any]]:
    """Import a library that nobody has, and return its class."""
    text = "class Thing:\n    def name(self):\n        return 'theirs'\n"
    (tmp_path / f"{NAME}.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, NAME, raising=False)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def imported() -> type[Any]:
        importlib.invalidate_caches()
        thing: type[Any] = importlib.import_module(NAME).Thing
        return thing

    return imported


def ours(original: Any, patch: Patch) -> Callable[..., str]:
    def name(self: object) -> str:
        said: str = original(self)
        return f"ours, not {said}" if patch.active else said

    return name


def test_a_library_is_mended_when_it_comes(imported: Callable[[], type[Any]]) -> None:
    mending = Mending((NAME, "Thing", "name", ours))
    mending.install()
    mending.install()
    assert NAME not in sys.modules
    thing = imported()
    assert thing().name() == "ours, not theirs"
    mending.uninstall()
    assert thing().name() == "theirs"
    mending.install()
    assert thing().name() == "ours, not theirs"
    mending.uninstall()


def test_a_library_that_is_there_is_mended_at_once(
    imported: Callable[[], type[Any]],
) -> None:
    thing = imported()
    mending = Mending((NAME, "Thing", "name", ours))
    mending.install()
    assert thing().name() == "ours, not theirs"
    mending.uninstall()


def test_nothing_is_mended_once_it_was_taken_back(
    imported: Callable[[], type[Any]],
) -> None:
    mending = Mending((NAME, "Thing", "name", ours))
    mending.install()
    mending.uninstall()
    assert imported()().name() == "theirs"


def test_what_a_version_does_not_have_is_passed_over(
    imported: Callable[[], type[Any]],
) -> None:
    mending = Mending(
        (NAME, "Nothing", "__init__", ours),
        (NAME, "Thing", "nothing", ours),
        (NAME, "Thing", "name", ours),
    )
    mending.install()
    assert imported()().name() == "ours, not theirs"
    mending.uninstall()
