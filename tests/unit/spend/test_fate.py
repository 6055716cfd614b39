"""The split, rule by rule, and what holds for every split."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hangup.spend.fate import Basis, Fate, Portion, prorate, split
from hangup.spend.usage import Usage

SUNK, WASTED = Fate.SUNK, Fate.WASTED
REPORTED, PRORATED, ESTIMATED = Basis.REPORTED, Basis.PRORATED, Basis.ESTIMATED
USED = Usage(100, 60)

RULES = {
    "ended before the moment: all before": (
        (0.0, 1.0, 4.0, USED, 5.0),
        [(SUNK, 100, 60, REPORTED, 4.0)],
    ),
    "ended at the moment: all before": (
        (0.0, 1.0, 5.0, USED, 5.0),
        [(SUNK, 100, 60, REPORTED, 5.0)],
    ),
    "started after the moment: all after": (
        (6.0, 7.0, 9.0, USED, 5.0),
        [(WASTED, 100, 60, REPORTED, 3.0)],
    ),
    "started at the moment: all after": (
        (5.0, 6.0, 9.0, USED, 5.0),
        [(WASTED, 100, 60, REPORTED, 4.0)],
    ),
    "across, first token known: output by time since it": (
        (0.0, 2.0, 8.0, USED, 4.0),
        [
            (SUNK, 100, 0, REPORTED, 4.0),
            (SUNK, 0, 20, PRORATED, 0.0),
            (WASTED, 0, 40, PRORATED, 4.0),
        ],
    ),
    "across, first token unknown: output by time since the start": (
        (0.0, None, 8.0, USED, 4.0),
        [
            (SUNK, 100, 0, REPORTED, 4.0),
            (SUNK, 0, 30, PRORATED, 0.0),
            (WASTED, 0, 30, PRORATED, 4.0),
        ],
    ),
    "across, first token after the moment: output after, undivided": (
        (0.0, 6.0, 8.0, USED, 4.0),
        [(SUNK, 100, 0, REPORTED, 4.0), (WASTED, 0, 60, REPORTED, 4.0)],
    ),
    "across, first token at the moment: output after, undivided": (
        (0.0, 4.0, 8.0, USED, 4.0),
        [(SUNK, 100, 0, REPORTED, 4.0), (WASTED, 0, 60, REPORTED, 4.0)],
    ),
    "across, no output: nothing divided": (
        (0.0, None, 8.0, Usage(100, 0), 4.0),
        [(SUNK, 100, 0, REPORTED, 4.0), (WASTED, 0, 0, REPORTED, 4.0)],
    ),
    "across, output unknown: only the input": (
        (0.0, 2.0, 8.0, Usage(100, None), 4.0),
        [(SUNK, 100, 0, REPORTED, 4.0), (WASTED, 0, 0, REPORTED, 4.0)],
    ),
    "across, usage unknown: only time": (
        (0.0, 2.0, 8.0, None, 3.0),
        [(SUNK, 0, 0, REPORTED, 3.0), (WASTED, 0, 0, REPORTED, 5.0)],
    ),
    "across, one token, early: rounded to the nearer side": (
        (0.0, None, 8.0, Usage(1, 1), 1.0),
        [(SUNK, 1, 0, REPORTED, 1.0), (WASTED, 0, 1, PRORATED, 7.0)],
    ),
    "a first token before the start counts as the start": (
        (2.0, 0.0, 6.0, USED, 4.0),
        [
            (SUNK, 100, 0, REPORTED, 2.0),
            (SUNK, 0, 30, PRORATED, 0.0),
            (WASTED, 0, 30, PRORATED, 2.0),
        ],
    ),
    "no moment: all before": (
        (0.0, None, 8.0, USED, math.inf),
        [(SUNK, 100, 60, REPORTED, 8.0)],
    ),
    "an instant at the moment: before": (
        (5.0, None, 5.0, USED, 5.0),
        [(SUNK, 100, 60, REPORTED, 0.0)],
    ),
}


@pytest.mark.parametrize(("call", "portions"), RULES.values(), ids=RULES.keys())
def test_rule(
    call: tuple[float, float | None, float, Usage | None, float],
    portions: list[tuple[Fate, int, int, Basis, float]],
) -> None:
    assert split(*call, SUNK, WASTED) == tuple(Portion(*row) for row in portions)


def test_delivery_splits_by_the_same_rule() -> None:
    portions = split(0.0, None, 8.0, USED, 4.0, Fate.DELIVERED, Fate.AFTER)
    assert [(part.fate, part.input, part.output) for part in portions] == [
        (Fate.DELIVERED, 100, 0),
        (Fate.DELIVERED, 0, 30),
        (Fate.AFTER, 0, 30),
    ]


instants = st.floats(0, 1e6)
counts = st.none() | st.integers(0, 2**53 - 1)
usages = st.none() | st.builds(Usage, counts, counts)


@given(instants, st.none() | instants, instants, usages, instants)
def test_portions_sum_to_the_usage_and_lie_on_their_side(
    start: float,
    first_token: float | None,
    duration: float,
    usage: Usage | None,
    boundary: float,
) -> None:
    end = start + duration
    portions = split(start, first_token, end, usage, boundary, SUNK, WASTED)
    used = usage or Usage(0, 0)
    assert sum(part.input for part in portions) == (used.input or 0)
    assert sum(part.output for part in portions) == (used.output or 0)
    assert all(part.input >= 0 and part.output >= 0 for part in portions)
    assert all(part.seconds >= 0 for part in portions)
    assert math.isclose(
        sum(part.seconds for part in portions), end - start, abs_tol=1e-9
    )
    fates = {part.fate for part in portions}
    assert (WASTED in fates) == (end > boundary)
    assert (SUNK in fates) == (start < boundary or end <= boundary)
    assert portions[0].input == (used.input or 0)


@given(st.integers(0, 2**53 - 1), st.floats(0.1, 100), st.floats(0, 100))
def test_a_later_moment_never_moves_output_after_it(
    count: int, duration: float, boundary: float
) -> None:
    earlier = prorate(count, 1.0, 1.0 + duration, boundary)
    later = prorate(count, 1.0, 1.0 + duration, boundary + 1.0)
    assert 0 <= earlier <= later <= count
