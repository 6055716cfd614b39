"""A document of mappings, lists and scalars that knows its lines, and JSON read as one.

Whoever judges a file can then say where in it something is wrong. YAML is read into the
same shape by an adapter (:mod:`hangup.otel.policyfile`); JSON needs nothing.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from hangup.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

Scalar: TypeAlias = str | float | None

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+')


class Node(NamedTuple):
    """One value of a document.

    Attributes:
        line: Where it begins, from 1; of a mapping's value, the line of its key.
        value: A mapping by text, a list, or a scalar. What is neither a number nor
            null is its text, so that ``off`` is no boolean.
    """

    line: int
    value: dict[str, Node] | list[Node] | Scalar


def mapping(
    source: str, line: int, pairs: Iterable[tuple[str, int, Node]]
) -> dict[str, Node]:
    """Return a mapping of the pairs: key, its line, value.

    Raises:
        ConfigError: A key is there twice.
    """
    found: dict[str, Node] = {}
    for key, at, node in pairs:
        if key in found:
            remedy = f"it is there already, in line {found[key].line}; delete one"
            raise ConfigError(f"{source}, line {at}: the key", key, remedy)
        found[key] = Node(at or line, node.value)
    return found


def read_json(source: str, text: str) -> Node:
    """Read a JSON document. Bounded by its length; recursion is by its depth.

    Args:
        source: What the document is called in errors.
        text: The whole of it.

    Raises:
        ConfigError: It is not JSON, or a key of a mapping is there twice.
    """
    try:
        json.loads(text)
        return _Json(source, text).node()
    except json.JSONDecodeError as error:
        place = f"{source}, line {error.lineno}"
        raise ConfigError(place, _line(text, error.lineno), error.msg) from None
    except RecursionError:
        raise ConfigError(source, text[:40], "it is nested too deep") from None


def _line(text: str, number: int) -> str:
    lines = text.splitlines()
    return lines[number - 1].strip()[:80] if number <= len(lines) else ""


class _Json:
    """Reads text that is known to be JSON once more, for the lines."""

    def __init__(self, source: str, text: str) -> None:
        self._source = source
        self._text = text
        self._at, self._counted, self._line = 0, 0, 1
        self._token = ""
        self._next()

    def _next(self) -> None:
        found = _TOKEN.search(self._text, self._at)
        if found is None:
            self._token = ""
            return
        self._token, self._at = found[0], found.end()
        self._line += self._text.count("\n", self._counted, found.start())
        self._counted = found.start()

    def node(self) -> Node:
        line, token = self._line, self._token
        if token == "{":  # noqa: S105  a brace
            return Node(line, mapping(self._source, line, self._pairs()))
        if token == "[":  # noqa: S105  a bracket
            return Node(line, list(self._items()))
        self._next()
        value = json.loads(token)
        if isinstance(value, bool):
            return Node(line, token)
        return Node(line, value)

    def _pairs(self) -> Iterator[tuple[str, int, Node]]:
        self._next()
        while self._token != "}":  # noqa: S105  a brace
            line, key = self._line, json.loads(self._token)
            self._next()  # the colon
            self._next()
            yield key, line, self.node()
            self._comma()
        self._next()

    def _items(self) -> Iterator[Node]:
        self._next()
        while self._token != "]":  # noqa: S105  a bracket
            yield self.node()
            self._comma()
        self._next()

    def _comma(self) -> None:
        if self._token == ",":  # noqa: S105  a comma
            self._next()
