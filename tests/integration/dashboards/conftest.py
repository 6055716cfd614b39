"""The generator stands beside ``src``, at the top of the repository."""

from __future__ import annotations

import sys
from pathlib import Path

TOP = str(Path(__file__).parents[3])
if TOP not in sys.path:
    sys.path.append(TOP)
