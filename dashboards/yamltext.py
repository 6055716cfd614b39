"""As much YAML as the generated files need: mappings, lists, text and numbers."""

from __future__ import annotations

import json
import re
from typing import Any

_PLAIN = re.compile(r"[A-Za-z_/][A-Za-z0-9_./-]*")
# What YAML 1.1 takes for something else than text.
_NOT_TEXT = {"y", "n", "yes", "no", "on", "off", "true", "false", "null"}


def to_yaml(value: Any) -> str:
    """Return YAML of plain data; keys keep their order."""
    return "\n".join(_lines(value)) + "\n"


def _lines(value: Any) -> list[str]:
    if isinstance(value, dict) and value:
        made = []
        for key, item in value.items():
            made += _item(f"{_scalar(key)}:", item)
        return made
    if isinstance(value, list) and value:
        made = []
        for item in value:
            first, *rest = _lines(item)
            made += [f"- {first}", *(f"  {line}".rstrip() for line in rest)]
        return made
    if isinstance(value, dict | list):
        return ["{}" if isinstance(value, dict) else "[]"]
    return [_scalar(value)]


def _item(head: str, value: Any) -> list[str]:
    if isinstance(value, dict | list) and value:
        return [head, *(f"  {line}".rstrip() for line in _lines(value))]
    if isinstance(value, str) and "\n" in value:
        style = "|" if value.endswith("\n") else "|-"
        lines = value.removesuffix("\n").split("\n")
        return [f"{head} {style}", *(f"  {line}".rstrip() for line in lines)]
    return [f"{head} {_lines(value)[0]}"]


def _scalar(value: Any) -> str:
    if isinstance(value, str):
        plain = _PLAIN.fullmatch(value) and value.lower() not in _NOT_TEXT
        return value if plain else json.dumps(value, ensure_ascii=False)
    return json.dumps(value)
