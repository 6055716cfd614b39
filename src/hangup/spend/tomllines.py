"""Where in a TOML text a value stands: tomllib says so for its own errors only.

A prefix of a TOML document that ends with a line is a document too, unless it ends
inside a string or an array of several lines; an open array can be closed for the
attempt. So the line of a value is the end of the shortest prefix that holds it. That is
right for every way to write a value, and costs a few parses, after an error only.
"""

from __future__ import annotations

import re
import tomllib

_LINE = re.compile(r"\(at line (\d+), column \d+\)")
_CLOSING = ("", "]")  # the second for a prefix that ends inside an array

Path = tuple[str | int, ...]
"""Keys, and indices of arrays, from the top to a value."""


def line_of(text: str, path: Path) -> int:
    """Return the line, from 1, on which the value at ``path`` begins or is complete.

    An entry of an array of several lines has its own line. Of a table it is the line
    that opens it. A path that is nowhere is on the last line.

    Args:
        text: A valid document.
        path: Where the value stands in it.
    """
    lines = text.split("\n")
    low, high = 1, len(lines)
    # A longer prefix holds all that a shorter one does: halve.
    while low < high:
        middle = (low + high) // 2
        if _holds(lines, middle, path):
            high = middle
        else:
            low = middle + 1
    return low


def line_of_error(text: str, error: tomllib.TOMLDecodeError) -> int:
    """Return the line, from 1, that tomllib complains about; the last for the end."""
    found = _LINE.search(str(error))
    return text.rstrip("\n").count("\n") + 1 if found is None else int(found[1])


def _holds(lines: list[str], count: int, path: Path) -> bool:
    while count:
        text = "\n".join(lines[:count])
        for closing in _CLOSING:
            try:
                document: object = tomllib.loads(f"{text}{closing}")
            except (tomllib.TOMLDecodeError, RecursionError):
                continue
            return _reaches(document, path)
        count -= 1  # the prefix ends inside a value of several lines
    return False


def _reaches(value: object, path: Path) -> bool:
    for step in path:
        if isinstance(value, dict):
            if step not in value:
                return False
            value = value[step]
        elif isinstance(value, list) and isinstance(step, int) and step < len(value):
            value = value[step]
        else:
            return False
    return True
