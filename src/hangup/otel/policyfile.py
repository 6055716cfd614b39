"""Reads a policy file: YAML with PyYAML (``hangup[policy]``), JSON without anything."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hangup.core.document import Node, mapping, read_json
from hangup.core.rules import digest_of, read_rules
from hangup.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hangup.core.rules import Rules

MOST_BYTES: Final = 1_000_000
_MISSING = (
    "it is not JSON, and reading YAML needs PyYAML: pip install 'hangup[policy]', or "
    "write the file as JSON"
)


class MissingLibraryError(ConfigError):
    """The file may be right, but nothing here can read it."""


def read(path: str) -> bytes:
    """Return the content of a policy file.

    Raises:
        ConfigError: It cannot be read, or it is too large to be meant.
    """
    try:
        with Path(path).open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        remedy = f"it cannot be read ({error.strerror or error})"
        raise ConfigError("policy_file", path, remedy) from None
    if len(content) > MOST_BYTES:
        remedy = f"it is larger than {MOST_BYTES} bytes"
        raise ConfigError("policy_file", path, remedy)
    return content


def parse(path: str, content: bytes) -> Rules:
    """Make rules of the content of a file.

    Args:
        path: For errors; a name that ends in ``.json`` is read as JSON alone.
        content: UTF-8.

    Raises:
        ConfigError: It cannot be used; names the line, and what is allowed.
        MissingLibraryError: It is not JSON, and PyYAML is not installed.
    """
    source = Path(path).name
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError(
            f"{source}, line {line}", "...", "write the file in UTF-8"
        ) from None
    return read_rules(source, _document(source, text), digest_of(content))


def _document(source: str, text: str) -> Node:
    if source.endswith(".json"):
        return read_json(source, text)
    try:
        import yaml  # type: ignore[import-untyped,unused-ignore]  # noqa: PLC0415
    except ImportError:
        try:
            return read_json(source, text)
        except ConfigError:
            raise MissingLibraryError("policy_file", source, _MISSING) from None
    try:
        loader = yaml.SafeLoader(text)
        found = loader.get_single_node()
        return Node(1, None) if found is None else _Yaml(source, loader).node(found)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = source if mark is None else f"{source}, line {mark.line + 1}"
        lines = text.splitlines()
        line = "" if mark is None or mark.line >= len(lines) else lines[mark.line]
        remedy = error.problem or error.context or "it is not YAML"
        raise ConfigError(place, line.strip()[:80], remedy) from None
    except yaml.YAMLError as error:
        raise ConfigError(source, text[:40], f"it is not YAML: {error}") from None
    except RecursionError:
        raise ConfigError(source, text[:40], "it is nested too deep") from None


class _Yaml:
    """Turns PyYAML's nodes into ours; builds no object that the text asks for."""

    def __init__(self, source: str, loader: Any) -> None:
        self._source = source
        self._loader = loader
        # An alias is its anchor again: shared, not copied, so that a small file cannot
        # become a large document. None while a node is being read.
        self._read: dict[int, Node | None] = {}

    def node(self, node: Any) -> Node:
        key = id(node)
        if key not in self._read:
            self._read[key] = None
            self._read[key] = self._node(node)
        found = self._read[key]
        if found is None:
            place = f"{self._source}, line {node.start_mark.line + 1}"
            raise ConfigError(place, "*", "it contains itself; write it out")
        return found

    def _node(self, node: Any) -> Node:
        line = node.start_mark.line + 1
        if node.id == "mapping":
            return Node(line, mapping(self._source, line, self._pairs(node)))
        if node.id == "sequence":
            return Node(line, [self.node(one) for one in node.value])
        if node.tag in ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float"):
            return Node(line, self._number(node))
        if node.tag == "tag:yaml.org,2002:null":
            return Node(line, None)
        # Also of booleans and dates: YAML takes a plain off for one.
        return Node(line, str(node.value))

    def _pairs(self, node: Any) -> Iterator[tuple[str, int, Node]]:
        for key, value in node.value:
            line = key.start_mark.line + 1
            if key.id != "scalar":
                place = f"{self._source}, line {line}"
                raise ConfigError(place, "...", "give a name as the key")
            yield str(key.value), line, self.node(value)

    def _number(self, node: Any) -> float | str:
        try:
            number: float = self._loader.construct_object(node)
        except ValueError:
            return str(node.value)
        return number
