from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hangup.bus import messages
from hangup.bus.messages import Held, Listing, Marker, Stop
from hangup.core.cause import Cause
from hangup.core.remote import Verdict

RUN = "0123456789abcdef" * 2


@given(st.sampled_from(Cause), st.text())
def test_a_stop_reads_as_it_was_written(cause: Cause, detail: str) -> None:
    marker = messages.write_marker(RUN, cause, detail)
    expected = Marker(RUN, Verdict(cause, detail[: messages.MOST_DETAIL]))
    assert messages.read(f"stop reply {marker}") == Stop("reply", expected)


def test_a_listing_reads_as_it_was_written() -> None:
    assert messages.read(messages.write_listing("r", "")) == Listing("r", "")
    assert messages.read(messages.write_listing("r", "0a")) == Listing("r", "0a")


def test_a_holder_reads_as_the_bus_writes_it() -> None:
    assert messages.read(f"held key 17 {RUN}") == Held("key", 17, RUN)


@given(st.text())
def test_no_text_makes_reading_raise(text: str) -> None:
    for message in (text, f"stop r {text}", f"held {text}", f"list {text}"):
        messages.read(message)
    messages.read_marker(text)


@pytest.mark.parametrize(
    "message",
    [
        "",
        "stop",
        "stop reply",
        "stop reply {}",
        "stop reply []",
        "stop reply " + json.dumps({"run": "x", "cause": "killed", "detail": ""}),
        "stop reply " + json.dumps({"run": RUN, "cause": "bored", "detail": ""}),
        "stop reply " + json.dumps({"run": RUN, "cause": "killed", "detail": 3}),
        "stop reply " + "[" * 60_000,
        "stop reply " + " " * 70_000 + messages.write_marker(RUN, Cause.KILLED, ""),
        "held key rank run",
        "held key 1",
        f"held key {'9' * 5_000} run",
        "list reply",
        "list reply not-hex",
        "go away now",
    ],
)
def test_what_nobody_wrote_says_nothing(message: str) -> None:
    assert messages.read(message) is None


def test_a_key_is_of_one_length_and_tells_no_names() -> None:
    name = messages.key_name("acme:alice@example.org:thread-7")
    assert len(name) == 64
    assert "alice" not in name
    assert name == messages.key_name("acme:alice@example.org:thread-7")
    assert messages.key_name("\ud800") != messages.key_name("")
