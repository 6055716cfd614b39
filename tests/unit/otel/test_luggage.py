"""Our entries as text: ahead of the users', and out of sight of whoever reads them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import baggage
from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.context import Context
from opentelemetry.propagators.textmap import default_getter, default_setter
from support.wire import TOKEN

from hangup.config import Mode
from hangup.core import guard
from hangup.otel import luggage, wire
from hangup.otel.luggage import Ahead, Past, behind, fits

OURS = f"hangup.token={TOKEN},hangup.left=5000"

keys = st.text("abc-", min_size=1, max_size=40)
values = st.text("xyz =,;%", min_size=1, max_size=400)


@given(st.dictionaries(keys, values, max_size=220))
def test_ours_arrive_whatever_the_user_carries_and_within_the_limits(
    entries: dict[str, str],
) -> None:
    context = Context()
    for key, value in entries.items():
        context = baggage.set_baggage(key, value, context)
    carrier: dict[str, str] = {}
    ahead = Ahead(default_setter, OURS)
    W3CBaggagePropagator().inject(carrier, context, setter=ahead)
    if not ahead.written:
        assert not entries
        ahead.set(carrier, "baggage", "")
    sent = carrier["baggage"]
    assert len(sent) <= luggage.MAX_LENGTH
    assert sent.count(",") < luggage.MAX_PAIRS
    assert wire.from_baggage_text(sent) == wire.Inbound(TOKEN, left=5.0)
    assert (ahead.pairs == len(entries)) == fits(entries, OURS)
    # What is dropped is the last, and nothing is cut in two.
    arrived = baggage.get_all(
        W3CBaggagePropagator().extract(carrier, Context(), getter=Past(default_getter))
    )
    assert arrived.keys() == dict(list(entries.items())[: ahead.pairs]).keys()


def test_an_empty_baggage_of_the_users_leaves_no_comma() -> None:
    assert behind(OURS, "") == (OURS, 0)
    assert behind(OURS, "a=1") == (f"{OURS},a=1", 1)


def test_one_entry_that_is_as_long_as_the_limit_leaves_ours() -> None:
    assert behind(OURS, "a=" + "v" * 8190) == (OURS, 0)


@pytest.mark.parametrize("name", ["baggage", "Baggage", "BAGGAGE"])
def test_the_name_of_the_header_may_be_spelt_as_carriers_do(name: str) -> None:
    carrier: dict[str, str] = {}
    Ahead(default_setter, OURS).set(carrier, name, "a=1")
    assert carrier == {name: f"{OURS},a=1"}
    assert Past(default_getter).get(carrier, name) == ["a=1"]


def test_every_other_header_passes_as_it_is() -> None:
    carrier: dict[str, str] = {}
    ahead = Ahead(default_setter, OURS)
    ahead.set(carrier, "traceparent", "00-1")
    assert (carrier, ahead.written) == ({"traceparent": "00-1"}, False)
    past = Past(default_getter)
    assert past.get({"x": OURS}, "x") == [OURS]
    assert past.get({}, "baggage") is None
    assert past.keys({"a": "1"}) == ["a"]
    assert past.text is None


def test_entries_elsewhere_than_in_front_are_left_to_who_reads_them() -> None:
    past = Past(default_getter)
    assert past.get({"baggage": f"a=1,{OURS}"}, "baggage") == [f"a=1,{OURS}"]
    assert past.get({"baggage": ["a=1", OURS]}, "baggage") == ["a=1", OURS]
    assert past.text == f"a=1, {OURS}"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (OURS, wire.Inbound(TOKEN, left=5.0)),
        (f"a=1, {OURS} ,b=2", wire.Inbound(TOKEN, left=5.0)),
        # Another order must not lose the deadline.
        (
            f"hangup.token={TOKEN},hangup.mode=observe,hangup.left=7000",
            wire.Inbound(TOKEN, left=7.0, mode=Mode.OBSERVE),
        ),
        (f"{OURS};p=1", wire.Inbound(TOKEN, left=5.0)),
        (f"hangup%2Etoken={TOKEN},a=1", wire.Inbound(TOKEN)),
        (f"hangup.token={TOKEN},hangup.left=-5", None),
        (f"hangup.token={TOKEN},hangup.left=99999999999999", None),
        (f"hangup.token={TOKEN},hangup.mode=party", None),
        ("hangup.left=5", None),
        # What str.strip takes for blanks: the rest would be 0, and expire at once.
        (f"hangup.token={TOKEN},hangup.left=%1D000", None),
        (f"%68angup.token={TOKEN}", wire.Inbound(TOKEN)),
        ("a=hangup.token", None),
        ("a=1", None),
        # Ours go first, and are read in what is over every limit.
        (f"{OURS},a={'v' * 20_000}", wire.Inbound(TOKEN, left=5.0)),
    ],
)
def test_a_baggage_is_read_as_text(text: str, found: wire.Inbound | None) -> None:
    assert wire.from_baggage_text(text) == found


def test_a_number_that_the_limit_would_cut_is_not_read_as_a_shorter_one() -> None:
    """Half of ``5000`` is an instant expiry."""
    filler = f"hangup.token={TOKEN},hangup.mode=observe,"
    tail = ",hangup.left=5000"
    room = 8192 - len(filler) - len(tail) + 3
    text = f"{filler}a={'v' * (room - 2)}{tail}"
    assert text[:8192].endswith("hangup.left=5")
    assert wire.from_baggage_text(text) == wire.Inbound(TOKEN, mode=Mode.OBSERVE)


def test_a_fault_of_ours_lets_the_users_entries_through(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    guard.strict(on=False)

    def broken(*_args: Any) -> Any:
        raise ValueError("ours")

    monkeypatch.setattr(luggage, "behind", broken)
    monkeypatch.setattr(wire, "past_entries", broken)
    carrier: dict[str, str] = {}
    Ahead(default_setter, OURS).set(carrier, "baggage", "a=1")
    assert carrier == {"baggage": "a=1"}
    assert Past(default_getter).get(carrier, "baggage") == ["a=1"]
