"""Events come out whole, wherever the chunks were cut and whatever ends the lines."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hangup.spend.jsonbody import JsonSplitter
from hangup.spend.sse import SseSplitter, event_data, event_name

ENDS = (b"\n", b"\r\n", b"\r")
TEXTS = st.text(
    st.characters(exclude_characters="\r\n\ufeff", exclude_categories=["Cs"]),
    max_size=12,
)


def cut(data: bytes, places: list[int]) -> list[bytes]:
    """The chunks of `data`, cut at these places taken modulo its length."""
    at = sorted({place % (len(data) + 1) for place in places})
    bounds = [0, *at, len(data)]
    return [data[a:b] for a, b in itertools.pairwise(bounds)]


def split(chunks: list[bytes], most: int = 1000) -> tuple[list[bytes], int]:
    splitter = SseSplitter(most)
    blocks = [block for chunk in chunks for block in splitter.feed(chunk)]
    return blocks, splitter.dropped


@st.composite
def streams(draw: st.DrawFn) -> tuple[bytes, list[tuple[str, list[str]]]]:
    """A stream in one kind of line end, and its events as (name, lines of data)."""
    end = draw(st.sampled_from(ENDS))
    raw, events = draw(st.sampled_from([b"", b"\xef\xbb\xbf"])), []
    for _ in range(draw(st.integers(0, 5))):
        name = draw(st.sampled_from(["", "delta"]))
        lines = draw(st.lists(TEXTS, min_size=1, max_size=3))
        block = [f"event: {name}"] if name else []
        block += draw(st.sampled_from([[], [": keep"], ["id: 7", "retry: 5"]]))
        space = draw(st.sampled_from(["", " "]))
        # Without the optional space, a leading one would be taken for it.
        block += [
            f"data:{space or (' ' if line.startswith(' ') else '')}{line}"
            for line in lines
        ]
        raw += end.join(line.encode() for line in block)
        raw += end * draw(st.integers(2, 4))
        events.append((name, lines))
    return raw, events


@given(streams(), st.lists(st.integers(0, 400), max_size=12))
def test_events_do_not_depend_on_where_the_stream_was_cut(
    stream: tuple[bytes, list[tuple[str, list[str]]]], places: list[int]
) -> None:
    raw, events = stream
    blocks, dropped = split(cut(raw, places))
    assert dropped == 0
    assert [
        (event_name(block).decode(), event_data(block).decode().split("\n"))
        for block in blocks
    ] == events


@given(st.binary(max_size=60), st.lists(st.integers(0, 60), max_size=8))
@example(b"\r\n\r\n\ndata\r\r", [1, 2, 3])
def test_any_bytes_at_all_split_the_same_whole_and_in_pieces(
    raw: bytes, places: list[int]
) -> None:
    assert split(cut(raw, places), most=5) == split([raw], most=5)


@given(st.lists(st.sampled_from([b"a", b"bb", b"\n", b"\r", b"\r\n"]), max_size=30))
def test_line_ends_may_be_mixed(pieces: list[bytes]) -> None:
    raw = b"".join(pieces)
    plain = raw.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    expected = [part.strip(b"\n") for part in plain.split(b"\n\n")[:-1]]
    single = [raw[i : i + 1] for i in range(len(raw))]
    assert split(single)[0] == [part for part in expected if part]


def test_an_event_beyond_the_bound_is_dropped_and_counted_and_the_next_is_kept() -> (
    None
):
    splitter = SseSplitter(20)
    held = 0
    found = []
    for _ in range(50):
        found += splitter.feed(b"data: " + b"x" * 30)
        held = max(held, splitter.pending)
    found += splitter.feed(b"\n\ndata: ok\n\n")
    assert found == [b"data: ok"]
    assert splitter.dropped == 1
    assert held <= 20


def test_an_event_of_exactly_the_bound_is_kept_also_byte_by_byte() -> None:
    raw = b"data: " + b"x" * 14 + b"\n\n"
    assert split([raw], most=20) == ([raw[:-2]], 0)
    assert split([raw[i : i + 1] for i in range(len(raw))], most=20) == ([raw[:-2]], 0)
    assert split([raw], most=19) == ([], 1)


def test_what_is_left_at_the_end_comes_out_when_it_is_closed() -> None:
    splitter = SseSplitter()
    assert splitter.feed(b"data: a\n\ndata: b\n") == [b"data: a"]
    assert splitter.close() == [b"data: b"]
    assert splitter.close() == []


@pytest.mark.parametrize(
    ("block", "data"),
    [
        (b"data", b""),
        (b"data:  two", b" two"),
        (b"dataset: x", b""),
        (b": data: x", b""),
        (b"data: a\ndata:\ndata: b", b"a\n\nb"),
        (b"event: x\nid: 1", b""),
    ],
)
def test_data_lines_are_read_as_the_standard_says(block: bytes, data: bytes) -> None:
    assert event_data(block) == data


@given(
    st.lists(
        st.recursive(
            st.none() | st.integers() | st.text(max_size=8),
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(st.text(max_size=4), inner, max_size=3)
            ),
            max_leaves=6,
        ).map(lambda value: {"k": value}),
        max_size=4,
    ),
    st.lists(st.integers(0, 400), max_size=12),
    st.sampled_from([None, 2]),
    st.booleans(),
)
def test_the_elements_of_a_json_array_come_out_wherever_it_was_cut(
    elements: list[object],
    places: list[int],
    indent: int | None,
    ascii_only: bool,  # noqa: FBT001  drawn
) -> None:
    raw = json.dumps(elements, indent=indent, ensure_ascii=ascii_only).encode()
    splitter = JsonSplitter()
    found = [one for chunk in cut(raw, places) for one in splitter.feed(chunk)]
    assert [json.loads(one) for one in found] == elements
    assert splitter.pending == 0
    assert splitter.close() == []


@given(st.binary(max_size=60), st.lists(st.integers(0, 60), max_size=8))
def test_bytes_that_are_no_json_never_raise_and_split_the_same(
    raw: bytes, places: list[int]
) -> None:
    def outcome(chunks: list[bytes]) -> tuple[list[bytes], list[bytes], int]:
        splitter = JsonSplitter(8)
        found = [one for chunk in chunks for one in splitter.feed(chunk)]
        assert splitter.pending <= 8
        return found, splitter.close(), splitter.dropped

    assert outcome(cut(b"[" + raw, places)) == outcome([b"[" + raw])


def test_a_json_element_beyond_the_bound_is_dropped_and_the_next_is_kept() -> None:
    splitter = JsonSplitter(12)
    found = splitter.feed(b'[{"a": "' + b"x" * 20)
    found += splitter.feed(b'"}, {"b": 1}]')
    assert found == [b'{"b": 1}']
    assert splitter.dropped == 1


def test_a_json_object_comes_out_when_it_is_closed() -> None:
    splitter = JsonSplitter()
    assert splitter.feed(b' {"a": ') == []
    assert splitter.feed(b"1}") == []
    assert splitter.close() == [b'{"a": 1}']
