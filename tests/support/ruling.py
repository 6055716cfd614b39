"""Rules of a rollout, put in force without a file."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from hangup.core import rollout
from hangup.core.document import read_json
from hangup.core.rules import read_rules

if TYPE_CHECKING:
    from collections.abc import Mapping


def use_rules(
    *rules: Mapping[str, Any], default: Mapping[str, Any] | None = None
) -> None:
    """Put rules in force, with a default where one is given."""
    document: dict[str, Any] = {"rules": list(rules)}
    if default is not None:
        document["default"] = default
    text = json.dumps(document)
    rollout.use_rules(read_rules("p", read_json("p", text), "d" * 12))
