"""What had come by when stays true when it is merged, corrected or asked late."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hangup.spend.timeline import Timeline


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)), max_size=200),
    st.integers(2, 9),
)
def test_merged_marks_are_bounded_and_off_by_less_than_one_mark(
    steps: list[tuple[int, int]], most: int
) -> None:
    exact, bounded = Timeline(10_000), Timeline(most)
    now, total = 0, 0.0
    moments: dict[int, int] = {}
    for wait, tokens in steps:
        now += wait
        total += tokens
        moments[now] = moments.get(now, 0) + tokens
        exact.add(float(now), total, total)
        bounded.add(float(now), total, total)
    assert len(bounded) <= most
    # Every addition is a moment of its own, also where the clock stood still.
    assert bounded.stride <= max(1, 4 * len(steps) / most)
    for moment in range(-1, now + 2):
        truth = exact.before(float(moment), grouped=False)
        found = bounded.before(float(moment), grouped=False)
        # At most what came in the moments that one mark stands for; 1: nothing.
        most_in_mark = bounded.stride * max(moments.values(), default=0)
        assert abs(truth - found) <= most_in_mark * (bounded.stride > 1)
    assert bounded.before(1e9, grouped=False) == total


def test_up_to_the_bound_it_is_exact_and_beyond_it_even() -> None:
    timeline = Timeline(4)
    for now in range(4):
        timeline.add(float(now), now + 1.0, 0.0)
    assert timeline.stride == 1
    assert [timeline.before(t, grouped=False) for t in (0.0, 0.9, 3.0)] == [1, 1, 4]
    for now in range(4, 8):
        timeline.add(float(now), now + 1.0, 0.0)
    assert timeline.stride == 2
    assert len(timeline) == 4
    for now in range(8):
        assert abs(timeline.before(now + 0.5, grouped=False) - (now + 1)) <= 1


def test_a_report_stretches_only_what_came_since_the_last_one() -> None:
    timeline = Timeline()
    timeline.add(1.0, 1.0, 9.0)
    assert not timeline.report(1.0, 10.0, (1.0, 9.0, False))
    timeline.add(2.0, 2.0, 10.0)
    timeline.add(3.0, 3.0, 11.0)
    assert timeline.before(2.0, grouped=False) == 11.0
    assert not timeline.report(4.0, 50.0, (3.0, 11.0, False))
    found = [timeline.before(t, grouped=True) for t in (0.0, 1.0, 2.0, 3.0, 9.0)]
    assert found == [0.0, 10.0, 30.0, 50.0, 50.0]


def test_tokens_without_text_came_when_they_were_reported() -> None:
    timeline = Timeline()
    assert timeline.report(5.0, 7.0, (0.0, 0.0, False))
    assert timeline.before(4.9, grouped=False) == 0
    assert timeline.before(5.0, grouped=False) == 7


def test_a_report_that_takes_an_earlier_one_back_counts_from_the_start() -> None:
    timeline = Timeline()
    timeline.add(1.0, 4.0, 4.0)
    timeline.report(1.0, 40.0, (4.0, 4.0, False))
    timeline.add(2.0, 8.0, 8.0)
    timeline.report(2.0, 22.0, (8.0, 8.0, False))
    assert timeline.before(1.0, grouped=False) == 20.0
    assert timeline.before(2.0, grouped=False) == pytest.approx(22.0)
