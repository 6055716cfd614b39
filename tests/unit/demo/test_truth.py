from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from support.demo import START, a_call, a_user, a_visit

from hangup.demo.truth import (
    StopSeconds,
    Truth,
    split_tokens,
    stop_seconds,
    truth_of,
    visit_truth,
)

if TYPE_CHECKING:
    from hangup.demo.journal import CallRecord


def test_everything_of_an_answered_visit_is_delivered() -> None:
    calls = [a_call(0, 1, chunks=((0.5, 4), (0.9, 3))), a_call(1, 2, input_tokens=50)]
    truth = visit_truth(a_visit(answer="yes"), calls)
    assert truth == Truth(delivered_tokens=100 + 7 + 50)


def test_an_answer_past_its_deadline_is_delivered_when_it_was_given() -> None:
    visit = a_visit(user=a_user(budget=1.0), answer="late", finished=3.0)
    assert visit.t0 is None
    assert visit_truth(visit, [a_call(0, 2)]).delivered_tokens == 100


def test_t0_of_a_leaver_is_the_moment_the_socket_was_closed() -> None:
    assert a_visit(left=2.5).t0 == START + 2.5


def test_t0_of_a_refused_visit_is_its_deadline_on_the_users_clock() -> None:
    visit = a_visit(user=a_user(budget=3.0), finished=3.02)
    assert visit.t0 == START + 3.0


def test_t0_of_a_visit_refused_before_its_deadline_is_the_refusal() -> None:
    assert a_visit(user=a_user(budget=3.0), finished=1.5).t0 == START + 1.5


def test_input_is_spent_when_the_call_reaches_the_model() -> None:
    call = a_call(1.0, 3.0, input_tokens=100)
    assert split_tokens(call, START + 0.99) == (0, 100)
    assert split_tokens(call, START + 1.0) == (0, 100)
    assert split_tokens(call, START + 1.01) == (100, 0)


def test_output_is_spent_chunk_by_chunk_when_it_was_generated() -> None:
    call = a_call(0.0, 3.0, input_tokens=10, chunks=((1.0, 5), (2.0, 7), (3.0, 2)))
    assert split_tokens(call, START + 1.5) == (15, 9)
    assert split_tokens(call, START + 2.0) == (15, 9)
    assert split_tokens(call, START + 9.0) == (24, 0)


def test_a_leavers_calls_are_split_at_t0_and_late_ones_are_counted() -> None:
    calls = [
        a_call(0, 1, chunks=((0.9, 5),)),
        a_call(1.5, 3, chunks=((1.9, 5), (2.5, 6))),
        a_call(3, 4, chunks=((3.5, 8),)),
    ]
    assert visit_truth(a_visit(left=2.0), calls) == Truth(
        sunk_tokens=105 + 105, wasted_tokens=6 + 108, wasted_calls=1
    )


def _stream(call: CallRecord) -> CallRecord:
    return replace(call, stream=True)


def test_of_a_plain_call_that_was_cut_only_the_input_can_be_estimated() -> None:
    calls = [a_call(1, 2.1, chunks=((1.9, 5), (2.05, 2)), cut=True)]
    assert visit_truth(a_visit(left=2.0), calls) == Truth(
        sunk_tokens=100,
        cut_calls=1,
        unknown_tokens=7,
        wasted_unknown_tokens=2,
        estimated_tokens=100,
        sunk_estimated_tokens=100,
    )


def test_a_stream_that_was_cut_before_its_usage_is_estimated_on_both_sides_of_t0() -> (
    None
):
    calls = [_stream(a_call(1, 2.1, chunks=((1.9, 5), (2.05, 2)), cut=True))]
    assert visit_truth(a_visit(left=2.0), calls) == Truth(
        sunk_tokens=105,
        wasted_tokens=2,
        cut_calls=1,
        estimated_tokens=107,
        sunk_estimated_tokens=105,
        wasted_estimated_tokens=2,
    )


def test_the_input_of_a_stream_that_opened_with_it_is_no_estimate() -> None:
    call = _stream(a_call(1, 2.1, chunks=((1.9, 5),), cut=True))
    call.input_sent = True
    truth = visit_truth(a_visit(left=2.0), [call])
    assert (truth.sunk_tokens, truth.sunk_estimated_tokens) == (105, 5)


def test_a_call_cut_after_its_usage_was_sent_is_known() -> None:
    calls = [a_call(1, 2, chunks=((1.9, 5),), cut=True, usage_sent=True)]
    truth = visit_truth(a_visit(left=2.0), calls)
    assert truth == Truth(sunk_tokens=105, cut_calls=1)


@pytest.mark.parametrize(("stream", "seen"), [(True, 5), (False, 0)])
def test_what_a_provider_generates_after_the_close_is_waste_that_nobody_saw(
    *, stream: bool, seen: int
) -> None:
    call = a_call(1, 2.1, chunks=((1.9, 5), (4.0, 50)), cut=True)
    call.stream, call.ended = stream, START + 4.0
    truth = visit_truth(a_visit(left=2.0), [call])
    assert (truth.sunk_tokens, truth.wasted_tokens) == (100 + seen, 0)
    assert (truth.unknown_tokens, truth.wasted_unknown_tokens) == (55 - seen, 50)
    assert truth.all_wasted_tokens == 50


def test_everything_the_model_generated_is_in_exactly_one_sum() -> None:
    calls = [
        a_call(0, 1, chunks=((0.9, 5),)),
        a_call(1, 2.1, chunks=((1.9, 3), (2.05, 2), (3.0, 9)), cut=True),
        _stream(a_call(1, 2.1, chunks=((1.9, 4), (2.05, 2), (3.0, 8)), cut=True)),
        a_call(2.2, 3, chunks=((2.5, 6),)),
    ]
    truth = visit_truth(a_visit(left=2.0), calls)
    sums = truth.sunk_tokens + truth.wasted_tokens + truth.unknown_tokens
    assert sums == sum(call.total_tokens for call in calls)


def test_calls_and_visits_meet_by_tag_and_strangers_count_nowhere() -> None:
    visits = [
        a_visit(user=a_user("a"), answer="yes"),
        a_visit(user=a_user("b"), left=1.0),
    ]
    calls = [
        a_call(0, 1, user="observe/a", input_tokens=1),
        a_call(2, 3, user="observe/b", input_tokens=10),
        a_call(0, 1, user="warm-up", input_tokens=100),
    ]
    assert truth_of(visits, calls) == Truth(
        delivered_tokens=1, wasted_tokens=10, wasted_calls=1
    )


def test_stop_seconds_run_from_t0_to_the_last_close_of_abandoned_visits() -> None:
    visits = [
        a_visit(user=a_user("left"), left=2.0),
        a_visit(user=a_user("quiet"), left=2.0),
        a_visit(user=a_user("nothing"), left=2.0),
        a_visit(user=a_user("stayed"), answer="yes"),
    ]
    calls = [
        a_call(0, 2.25, user="observe/left"),
        a_call(0, 2.75, user="observe/left"),
        a_call(0, 1.0, user="observe/quiet"),
        a_call(0, 9.0, user="observe/stayed"),
    ]
    assert stop_seconds(visits, calls) == StopSeconds(p50=0.0, p95=0.75, max=0.75)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], StopSeconds(0.0, 0.0, 0.0)),
        ([3.0], StopSeconds(3.0, 3.0, 3.0)),
        ([4.0, 1.0, 3.0, 2.0], StopSeconds(2.0, 4.0, 4.0)),
        ([float(n) for n in range(1, 101)], StopSeconds(50.0, 95.0, 100.0)),
    ],
)
def test_percentiles_are_nearest_rank(
    values: list[float], expected: StopSeconds
) -> None:
    assert StopSeconds.of(values) == expected
