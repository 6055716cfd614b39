"""The codec: what leaves comes back, and nothing hostile does harm."""

from __future__ import annotations

import logging
import math
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.wire import TOKEN

from hangup.config import Mode
from hangup.otel import once, wire
from hangup.otel.wire import Inbound
from hangup.testing import FakeClock

FULL = Inbound(
    TOKEN, left=12.345, deadline_unix=1_700_000_012.345, mode=Mode.ENFORCE, gone=0.75
)

tokens = st.text("0123456789abcdef", min_size=32, max_size=32)
milliseconds = st.integers(0, int(wire.MAX_LEFT * 1000)).map(lambda ms: ms / 1000)
instants = st.integers(0, 10**14).map(lambda ms: ms / 1000)
inbounds = st.builds(
    Inbound,
    token=tokens,
    left=st.none() | milliseconds,
    deadline_unix=st.none() | instants,
    mode=st.none() | st.sampled_from(Mode),
    gone=st.none() | instants,
)
fragments = st.lists(
    st.sampled_from(
        [
            *(f't="{TOKEN}"', 't="x"', "t=abc", "t", "d=1700000000000", "d=-1"),
            *("l=5000", "l=0", "l=-5", "l=99999999999999999", "l=1.5", "l", 'l="5"'),
            *('m="observe"', 'm="party"', "m=observe", "g=3", "x=?1", 'y="a\\"b"'),
            *(", ", ",", ";", "=", '"', "\\", "\x00", "é", " ", "\t", "z;p=1"),
        ]
    ),
    max_size=12,
).map("".join)


@pytest.fixture(autouse=True)
def _say_everything() -> None:
    once.forget()


@given(inbounds)
def test_a_header_round_trips(run: Inbound) -> None:
    text = wire.encode_header(run)
    assert wire.decode_header(text) == run
    assert len(text) <= 120


@given(inbounds)
def test_baggage_round_trips_and_keeps_to_its_alphabet(run: Inbound) -> None:
    entries = wire.to_baggage(run)
    assert wire.from_baggage(entries) == run
    assert all(re.fullmatch(r"[0-9A-Za-z.-]+", value) for value in entries.values())


@given(st.text(max_size=600) | fragments, st.sampled_from([None, 0.5, 60.0]))
def test_no_text_raises_expires_at_once_or_lasts_for_ever(
    text: str, max_budget: float | None
) -> None:
    clock = FakeClock()
    found = wire.decode_header(text)
    if found is None:
        return
    left = wire.deadline_of(found, clock, max_budget).remaining()
    assert left > 0 or re.search(r"l=0+(?![0-9.])", text)
    if max_budget is not None:
        assert left <= max_budget
    if found.left is not None or left != math.inf:
        assert left <= wire.MAX_LEFT


@given(
    st.dictionaries(
        st.sampled_from([f"hangup.{key}" for key in ("token", "deadline", "left")])
        | st.sampled_from(["hangup.mode", "hangup.gone", "other"]),
        st.sampled_from([TOKEN, TOKEN.upper(), "0", "5000", "-1", "", "1e3", "٣", 7])
        | st.text(max_size=40),
    )
)
def test_no_baggage_raises(entries: dict[str, object]) -> None:
    found = wire.from_baggage(entries)
    assert found is None or found.token == entries["hangup.token"]


def test_the_documented_form() -> None:
    assert wire.encode_header(FULL) == (
        f't="{TOKEN}", d=1700000012345, l=12345, m="enforce", g=750'
    )
    assert wire.to_baggage(FULL) == {
        "hangup.token": TOKEN,
        "hangup.deadline": "1700000012345",
        "hangup.left": "12345",
        "hangup.mode": "enforce",
        "hangup.gone": "750",
    }


def test_a_run_without_a_deadline_says_nothing_of_one() -> None:
    endless = Inbound(TOKEN, left=math.inf, deadline_unix=math.inf, mode=Mode.REFUSE)
    assert wire.encode_header(endless) == f't="{TOKEN}", m="refuse"'


def test_the_time_left_is_never_sent_longer_than_it_is_nor_negative() -> None:
    assert "l=1999" in wire.encode_header(Inbound(TOKEN, left=1.9998))
    assert "l=0" in wire.encode_header(Inbound(TOKEN, left=-3.0))
    long = wire.decode_header(wire.encode_header(Inbound(TOKEN, left=1e9)))
    assert long == Inbound(TOKEN, left=wire.MAX_LEFT)


@pytest.mark.parametrize(
    "text",
    [
        f't="{TOKEN}",l=5000,v=2',
        f't="{TOKEN}", l=5000, next="a, \\"b\\"", on, off=?0, f=1.5, tok=a/b:c',
        f'  t="{TOKEN}";p=1;q="x" \t,\t l=5000;s  ',
        f'l=1, t="{TOKEN}", l=5000',
    ],
)
def test_what_a_later_version_may_add_is_skipped(text: str) -> None:
    assert wire.decode_header(text) == Inbound(TOKEN, left=5.0)


@pytest.mark.parametrize(
    "text",
    [
        "nonsense !",
        f't="{TOKEN}",',
        f't="{TOKEN}",, l=5',
        f't="{TOKEN}" l=5',
        f't="{TOKEN.upper()}"',
        f't="{TOKEN[:-1]}"',
        f"t={TOKEN}",
        f't="{TOKEN}',
        "l=5000",
        f't="{TOKEN}", l=-1',
        f't="{TOKEN}", l=1.5',
        f't="{TOKEN}", l=9999999999999999',
        f't="{TOKEN}", l=2592000001',
        f't="{TOKEN}", l',
        f't="{TOKEN}", d="1700000000000"',
        f't="{TOKEN}", m="party"',
        f't="{TOKEN}", m=observe',
        f't="{TOKEN}", x="{"y" * 500}"',
        f't="{TOKEN}", x=(1 2)',
        f'T="{TOKEN}"',
    ],
)
def test_malformed_headers_count_as_absent(text: str) -> None:
    assert wire.decode_header(text) is None


@pytest.mark.parametrize("text", ["", "   ", "\t"])
def test_an_empty_header_is_absent_and_no_fault(
    text: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert wire.decode_header(text) is None
    assert caplog.records == []


def test_malformed_input_is_warned_of_once_and_cut_short(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, "hangup"):
        for _ in range(3):
            wire.decode_header("!" * 100_000)
    [record] = caplog.records
    assert "malformed Hangup header" in record.getMessage()
    assert len(record.getMessage()) < 200


def test_skew_does_not_move_the_deadline() -> None:
    clock = FakeClock()
    for skew in (0.0, 120.0, -120.0, 1e6):
        sent = Inbound(TOKEN, left=10.0, deadline_unix=clock.wall() + skew + 10.0)
        assert wire.deadline_of(sent, clock, None).remaining() == 10.0
        assert wire.skew_of(sent, clock) == pytest.approx(skew)


def test_the_deadline_is_capped_and_only_ever_tightened() -> None:
    clock = FakeClock()
    assert wire.deadline_of(FULL, clock, 5.0).remaining() == 5.0
    assert wire.deadline_of(FULL, clock, 60.0).remaining() == pytest.approx(12.345)
    bare = Inbound(TOKEN)
    assert wire.deadline_of(bare, clock, 60.0).remaining() == 60.0
    assert wire.deadline_of(bare, clock, None).remaining() == math.inf


def test_an_absolute_deadline_alone_is_a_fallback_that_cannot_expire_at_once() -> None:
    clock = FakeClock()
    ahead = Inbound(TOKEN, deadline_unix=clock.wall() + 7.0)
    assert wire.deadline_of(ahead, clock, None).remaining() == pytest.approx(7.0)
    past = replace(ahead, deadline_unix=clock.wall() - 7.0)
    assert wire.deadline_of(past, clock, 30.0).remaining() == 30.0
    assert wire.skew_of(past, clock) is None


def test_no_time_left_is_believed_when_it_is_said() -> None:
    clock = FakeClock()
    none_left = wire.decode_header(f't="{TOKEN}", l=0')
    assert none_left is not None
    assert wire.deadline_of(none_left, clock, 30.0).expired()
