"""Our entries come out of every shape of carrier; nothing else is touched."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hangup.otel import carriers

MIXED = "a=1, hangup.token=abc ,hangup%2Eleft=5;p=1, b=hangup.c"
CLEAN = "a=1, b=hangup.c"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"Hangup": "x", "Baggage": MIXED, "k": "v"}, {"Baggage": CLEAN, "k": "v"}),
        ({"HANGUP": ["x"], "baggage": [MIXED, "hangup.left=1"]}, {"baggage": [CLEAN]}),
        ({b"hangup": b"x", b"baggage": MIXED.encode()}, {b"baggage": CLEAN.encode()}),
        ({"baggage": "hangup.token=abc"}, {}),
        ({"baggage": "a=1,,b"}, {"baggage": "a=1,,b"}),
        (
            {"hangup-settle": "1", "x-hangup": "1"},
            {"hangup-settle": "1", "x-hangup": "1"},
        ),
        ({"baggage": 7, 5: "x"}, {"baggage": 7, 5: "x"}),
        ({}, {}),
    ],
)
def test_mappings(before: dict[Any, Any], after: dict[Any, Any]) -> None:
    carriers.strip(before)
    assert before == after


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            [(b"Hangup", b"x"), (b"Baggage", MIXED.encode()), (b"k", b"v")],
            [(b"Baggage", CLEAN.encode()), (b"k", b"v")],
        ),
        ([("baggage", "hangup.left=5"), ("k", "v")], [("k", "v")]),
        ([("baggage", MIXED, "extra")], [("baggage", CLEAN, "extra")]),
        ([("baggage", ""), "odd", ()], [("baggage", ""), "odd", ()]),
    ],
)
def test_lists_of_pairs(before: list[Any], after: list[Any]) -> None:
    carriers.strip(before)
    assert before == after


def test_real_headers_with_a_repeated_field() -> None:
    headers = httpx.Headers([("Baggage", "a=1"), ("baggage", MIXED), ("Hangup", "x")])
    carriers.strip(headers)
    assert headers.multi_items() == [("baggage", f"a=1, {CLEAN}")]


class Multi(dict[str, list[str]]):
    """As multidict: ``[]`` gives the first value, setting replaces them all."""

    def keys(self) -> Any:
        return [key for key, values in self.items() for _ in values]

    def getall(self, key: str) -> list[str]:
        return dict.__getitem__(self, key)

    def __getitem__(self, key: str) -> Any:
        return self.getall(key)[0]

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, [value])


def test_every_value_of_a_repeated_field_is_cleaned() -> None:
    headers = Multi({"Baggage": ["a=1", MIXED, "b=2"], "Hangup": ["x", "y"]})
    carriers.strip(headers)
    assert dict(headers) == {"Baggage": [f"a=1, {CLEAN}, b=2"]}


def test_a_carrier_that_cannot_be_changed_is_overwritten_through_its_setter() -> None:
    written: dict[str, str] = {}
    carrier = MappingProxyType({"Hangup": "x", "baggage": MIXED, "k": "v"})
    carriers.strip(carrier, written.__setitem__)
    assert written == {"Hangup": "", "baggage": CLEAN}


@pytest.mark.parametrize("carrier", [None, 5, "text", object(), b"hangup"])
def test_an_unknown_shape_is_left_alone(carrier: object) -> None:
    carriers.strip(carrier)


@given(st.text())
def test_a_baggage_without_our_prefix_keeps_every_byte(text: str) -> None:
    kept = carriers.without_ours(text)
    assert kept == text or "hangup" in text


@given(st.lists(st.sampled_from(["a=1", " b=2;p", "hangup.x=1", "", " hangup.y=2 "])))
def test_exactly_our_entries_are_removed(entries: list[str]) -> None:
    kept = carriers.without_ours(",".join(entries))
    theirs = [entry for entry in entries if "hangup" not in entry]
    assert kept.split(",") == (theirs or [""])
