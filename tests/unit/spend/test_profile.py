"""What is kept of a metered stream splits it as the meter itself would."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hangup.spend.fate import Basis, Fate, split
from hangup.spend.meter import Meter, Provider
from hangup.spend.profile import MOST_POINTS, Profile, metering_of


def event(data: object) -> bytes:
    return b"data: " + json.dumps(data).encode() + b"\n\n"


def said(text: str) -> bytes:
    return event({"choices": [{"delta": {"content": text}}]})


def used(prompt: int, completion: int) -> bytes:
    usage = {"prompt_tokens": prompt, "completion_tokens": completion}
    return event({"choices": [], "usage": usage})


def streamed(moments: list[float], *, usage: bool = True) -> Meter:
    meter = Meter(Provider.OPENAI_CHAT, started_at=0.0)
    for moment in moments:
        meter.feed(said("four words of text "), moment)
    if usage:
        meter.feed(used(7, 5 * len(moments)), moments[-1])
    meter.close(moments[-1])
    return meter


INSTANTS = st.lists(
    st.floats(0.1, 100, allow_nan=False), min_size=1, max_size=300, unique=True
).map(sorted)


@given(INSTANTS, st.floats(0, 101))
def test_a_profile_tells_what_the_meter_told(
    moments: list[float], moment: float
) -> None:
    meter = streamed(moments)
    exact, kept = meter.tokens_before(moment), Profile(meter).came(moment)
    if len(moments) <= MOST_POINTS:
        assert kept == exact
    else:  # within what lies between two points that are kept
        assert abs(kept - exact) <= 5 * (len(moments) // (MOST_POINTS - 1) + 2)


def test_a_metered_stream_is_split_by_what_had_come_not_by_time() -> None:
    meter = streamed([1.0, 1.1, 1.2, 9.0])
    portions = split(
        0.0, None, 9.0, meter.usage, 2.0, Fate.SUNK, Fate.WASTED, metering_of(meter)
    )
    assert [(one.fate, one.input, one.output, one.basis) for one in portions] == [
        (Fate.SUNK, 7, 0, Basis.REPORTED),
        (Fate.SUNK, 0, 15, Basis.REPORTED),
        (Fate.WASTED, 0, 5, Basis.REPORTED),
    ]


def test_what_was_estimated_says_so_on_both_sides() -> None:
    meter = streamed([1.0, 2.0, 3.0, 4.0], usage=False)
    portions = split(
        0.0, None, 4.0, meter.usage, 2.0, Fate.SUNK, Fate.WASTED, metering_of(meter)
    )
    assert {one.basis for one in portions if one.output} == {Basis.ESTIMATED}
    assert sum(one.output for one in portions) == meter.usage.output


def test_input_and_output_of_one_fate_may_be_known_differently() -> None:
    meter = streamed([1.0], usage=False)
    known = metering_of(meter)._replace(input=Basis.REPORTED)
    usage = meter.usage.__class__(7, 5)
    portions = split(0.0, None, 1.0, usage, 2.0, Fate.SUNK, Fate.WASTED, known)
    assert [(one.input, one.output, one.basis) for one in portions] == [
        (7, 0, Basis.REPORTED),
        (0, 5, Basis.ESTIMATED),
    ]
    assert sum(one.seconds for one in portions) == pytest.approx(1.0)


def test_a_body_that_was_no_stream_is_divided_in_proportion() -> None:
    meter = Meter(Provider.OPENAI_CHAT, started_at=0.0)
    usage = {"prompt_tokens": 7, "completion_tokens": 10}
    body = {"choices": [{"message": {"content": "x"}}], "usage": usage}
    meter.feed(json.dumps(body).encode(), 4.0)
    meter.close(4.0)
    known = metering_of(meter)
    assert known.came is None
    portions = split(0.0, None, 4.0, meter.usage, 1.0, Fate.SUNK, Fate.WASTED, known)
    assert [(one.output, one.basis) for one in portions if one.output] == [
        (3, Basis.PRORATED),
        (7, Basis.PRORATED),
    ]
