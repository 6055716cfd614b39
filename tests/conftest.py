"""Every test starts from default settings, and no fault inside hangup can hide."""

from __future__ import annotations

import gc
import os
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from hangup import config
from hangup.core import guard, registry
from hangup.core.current import position

if TYPE_CHECKING:
    from collections.abc import Iterator


# In CI the same examples every time: it judges a change, and searching is for before.
settings.register_profile("ci", derandomize=True, deadline=None)
# A shared machine may be slow at any time: how long an example takes tells nothing.
settings.register_profile("here", deadline=None)
settings.load_profile("here")
if os.environ.get("CI") == "true":
    settings.load_profile("ci")


def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Dashboards and rules are JSON and YAML: one Python is enough for them.

    And where sweeps are run, their short forms would tell nothing new.
    """
    for item in items:
        if "dashboards" in item.path.parts:
            item.add_marker(pytest.mark.wide)
    if "wide" not in config.option.markexpr:
        short = [item for item in items if item.get_closest_marker("narrow")]
        config.hook.pytest_deselected(items=short)
        items[:] = [item for item in items if item not in short]


def pytest_collection_finish() -> None:
    """Let no collection go through all that was imported, in the middle of a test.

    It stands still for a second on a slow machine, and is none of the test's affair.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _pristine(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for variable in tuple(os.environ):
        if variable.startswith(config.ENV_PREFIX):
            monkeypatch.delenv(variable)
    config.use(None)
    registry._registry.declared.clear()
    guard.strict(True)  # noqa: FBT003  a switch
    yield
    guard.strict(False)  # noqa: FBT003  a switch
    config.use(None)


@pytest.fixture(autouse=True, scope="module")
def _nothing_is_left_open() -> Iterator[None]:
    """A socket that was not closed is told of here, and not to an innocent test later.

    Collecting is cheap: what was imported is not gone through.
    """
    yield
    gc.collect()


@pytest.fixture(autouse=True)
def _outside_every_run() -> Iterator[None]:
    """No test leaves its run current on this thread, for the next one to find."""
    yield
    assert position() is None
