"""JSON with its lines: what it says is what :mod:`json` says, and where is known."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hangup.core.document import Node, read_json
from hangup.errors import ConfigError

scalars = st.none() | st.integers() | st.floats(allow_nan=False) | st.text()
documents = st.recursive(
    scalars,
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


def plain(node: Node) -> Any:
    if isinstance(node.value, dict):
        return {key: plain(one) for key, one in node.value.items()}
    if isinstance(node.value, list):
        return [plain(one) for one in node.value]
    return node.value


@given(documents, st.sampled_from([None, 0, 2]))
def test_it_reads_what_json_reads(document: Any, indent: int | None) -> None:
    text = json.dumps(document, indent=indent)
    assert plain(read_json("p.json", text)) == document


def test_every_value_knows_its_line() -> None:
    text = '{\n "a": 1,\n "b":\n  [true, "x\\n", {"c": null}],\n\n "d": {}\n}'
    top = read_json("p.json", text)
    assert isinstance(top.value, dict)
    assert {key: node.line for key, node in top.value.items()} == {
        "a": 2,
        "b": 3,
        "d": 6,
    }
    assert isinstance(top.value["b"].value, list)
    assert [node.line for node in top.value["b"].value] == [4, 4, 4]
    assert top.value["b"].value[0].value == "true"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{\n "a": 1\n "b": 2}', "p.json, line 3='\"b\": 2}' cannot be used"),
        ('{"a": 1,\n "a": 2}', "p.json, line 2: the key='a' cannot be used: it is"),
        ("", "p.json, line 1="),
        ("[" * 100_000, "nested too deep"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(text: str, says: str) -> None:
    with pytest.raises(ConfigError) as raised:
        read_json("p.json", text)
    assert says in str(raised.value)
