"""What a test needs from the machine, and what is worth its time on one Python."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from _pytest.mark import ParameterSet


def wide(*values: object) -> ParameterSet:
    """Parameters of a test that one Python is enough for."""
    return pytest.param(*values, marks=pytest.mark.wide)


def narrow(*values: object) -> ParameterSet:
    """Parameters of a sweep in short, for the Pythons that do not run it whole."""
    return pytest.param(*values, marks=pytest.mark.narrow)


def require(tool: str, *, present: bool | None = None) -> None:
    """Skip the test where ``tool`` is missing; where ``CI`` is true, fail it.

    Args:
        tool: An executable, or in plain words what is needed.
        present: Whether it is there; None looks for the executable on the path.
    """
    if shutil.which(tool) is not None if present is None else present:
        return
    reason = f"this machine has no {tool}"
    if os.environ.get("CI", "").lower() in ("1", "true"):
        pytest.fail(f"{reason}, and with CI set nothing is skipped")
    pytest.skip(reason)
