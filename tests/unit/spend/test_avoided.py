"""What was avoided is estimated from whole calls, errs low, and is never made up."""

from __future__ import annotations

import itertools
import random
import threading
from decimal import Context, Decimal, Inexact, localcontext
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hangup.core import guard
from hangup.spend import avoided
from hangup.spend.avoided import LEAST_BEYOND, LEAST_CALLS, RECENT, Avoided, Estimate
from hangup.spend.pricing import Cost
from hangup.spend.usage import Usage

if TYPE_CHECKING:
    from collections.abc import Iterable

USD = Decimal
KIND = "inference"


def history(outputs: Iterable[int], *, tokens_in: int = 100) -> Avoided:
    """Calls of the model m, at a cent for the input and a mill for an output token."""
    past = Avoided()
    for output in outputs:
        cost = Cost(USD("0.01"), USD("0.001") * output)
        past.record("m", KIND, Usage(tokens_in, output), cost)
    return past


def test_a_refused_call_would_have_used_what_such_calls_use() -> None:
    assert history([50] * 10).estimate_refused("m", KIND) == Estimate(
        100, 50, USD("0.06"), 10
    )


def test_fewer_than_ten_calls_are_no_history() -> None:
    assert LEAST_CALLS == 10
    assert history([50] * 9).estimate_refused("m", KIND) is None
    assert Avoided().estimate_refused("m", KIND) is None


def test_models_and_kinds_have_histories_of_their_own() -> None:
    past = history([50] * 10)
    assert past.estimate_refused("other", KIND) is None
    assert past.estimate_refused("m", "agent") is None
    assert past.estimate_rest("other", KIND, 0) is None


def test_one_runaway_answer_is_not_claimed_with_every_refusal() -> None:
    calm, wild = ([100] * 19 + [last] for last in (100, 1_000_000))
    assert history(wild).estimate_refused("m", KIND) == history(calm).estimate_refused(
        "m", KIND
    )


@pytest.mark.parametrize(
    ("count", "output"),
    [
        # (100 + ... + 900 + 900) / 10, and with the last two of forty cut to the third
        (10, 540),
        (20, 1_045),
        (40, 2_043),
    ],
)
def test_the_largest_twentieth_counts_as_the_largest_of_the_rest(
    count: int, output: int
) -> None:
    seen = [100 * number for number in range(1, count + 1)]
    estimate = history(seen).estimate_refused("m", KIND)
    assert estimate is not None
    assert estimate.output == output


def test_the_rest_of_a_stream_is_what_those_that_went_on_had_left() -> None:
    past = history([10] * 50 + [100] * 5)
    # At the start nearly all are short: (50 x 10 + 5 x 100, the tail cut) / 55.
    start = past.estimate_rest("m", KIND, 0)
    assert start is not None
    assert start.output == 18
    assert start.calls == 55
    # Beyond ten only the long ones count, and they had 60 to come after 40.
    assert past.estimate_rest("m", KIND, 40) == Estimate(0, 60, USD("0.06"), 5)


def test_beyond_every_length_that_was_seen_nothing_is_claimed() -> None:
    past = history([100] * 50)
    assert past.estimate_rest("m", KIND, 100) is None
    assert past.estimate_rest("m", KIND, 5_000) is None


def test_fewer_than_five_longer_calls_are_no_history() -> None:
    assert LEAST_BEYOND == 5
    assert history([10] * 50 + [100] * 4).estimate_rest("m", KIND, 50) is None
    assert history([10] * 50 + [100] * 5).estimate_rest("m", KIND, 50) is not None


def test_the_rest_is_never_more_than_the_request_allowed() -> None:
    past = history([1_000] * 20)
    estimate = past.estimate_rest("m", KIND, 90, 100)
    assert estimate == Estimate(0, 10, USD("0.01"), 20)


def test_a_stream_that_has_come_to_its_limit_had_nothing_left() -> None:
    nothing = Estimate(0, 0, USD(0), 0)
    assert Avoided().estimate_rest("m", KIND, 100, 100) == nothing
    assert Avoided().estimate_rest("m", KIND, 101, 100) == nothing


def test_calls_without_a_price_estimate_tokens_and_no_dollars() -> None:
    past = Avoided()
    for _ in range(20):
        past.record("m", KIND, Usage(100, 50))
    assert past.estimate_refused("m", KIND) == Estimate(100, 50, None, 20)
    assert past.estimate_rest("m", KIND, 20) == Estimate(0, 30, None, 20)


def test_too_few_priced_calls_estimate_no_dollars() -> None:
    past = history([50] * 4)
    for _ in range(20):
        past.record("m", KIND, Usage(100, 50))
    refused, rest = (
        past.estimate_refused("m", KIND),
        past.estimate_rest("m", KIND, 20),
    )
    assert refused is not None
    assert rest is not None
    assert refused.usd is None
    assert rest.usd is None
    past.record("m", KIND, Usage(100, 50), Cost(USD(0), USD("0.05")))
    rest = past.estimate_rest("m", KIND, 20)
    assert rest is not None
    assert rest.usd == USD("0.03")


@pytest.mark.parametrize("usage", [Usage(None, 5), Usage(5, None), Usage(None, None)])
def test_a_call_that_is_half_known_is_not_remembered(usage: Usage) -> None:
    past = Avoided()
    for _ in range(20):
        past.record("m", KIND, usage, Cost(USD(1), USD(1)))
    assert past.estimate_refused("m", KIND) is None


def test_embeddings_have_no_output_and_are_known_all_the_same() -> None:
    past = Avoided()
    for _ in range(20):
        past.record("m", "embeddings", Usage(500, None))
    assert past.estimate_refused("m", "embeddings") == Estimate(500, 0, None, 20)


def test_a_tool_with_a_price_is_remembered_and_one_without_is_not() -> None:
    past = Avoided()
    for _ in range(20):
        past.record("search", "tool", None, Cost(USD("0.01"), USD("0.002")))
        past.record("clock", "tool", None)
    assert past.estimate_refused("search", "tool") == Estimate(0, 0, USD("0.012"), 20)
    assert past.estimate_refused("clock", "tool") is None


def test_old_calls_are_forgotten() -> None:
    past = history([1_000] * RECENT + [10] * RECENT)
    estimate = past.estimate_refused("m", KIND)
    assert estimate is not None
    assert estimate.output == 10
    assert estimate.calls == RECENT


def test_of_too_many_models_the_one_unused_for_longest_is_forgotten() -> None:
    past = history([10] * 20)
    for number in range(500):
        past.record(f"model-{number}", KIND, Usage(1, 1))
        past.record("m", KIND, Usage(100, 10))
    assert len(past._rings) == 128
    assert past.estimate_refused("m", KIND) is not None
    assert ("model-0", KIND) not in past._rings
    assert ("model-499", KIND) in past._rings


def test_threads_may_record_and_ask_at_once() -> None:
    past = Avoided()
    wrong: list[Estimate] = []

    def expect_fifty(estimate: Estimate | None) -> None:
        if estimate is not None and estimate.output != 50:
            wrong.append(estimate)

    def work(name: str) -> None:
        for number in range(300):
            past.record("m", KIND, Usage(100, 50), Cost(USD("0.01"), USD("0.05")))
            past.record(f"{name}-{number}", KIND, Usage(1, 1))
            for estimate in (
                past.estimate_refused("m", KIND),
                past.estimate_rest("m", KIND, 0),
            ):
                expect_fifty(estimate)

    threads = [threading.Thread(target=work, args=(f"t{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert len(past._rings) <= 128 + len(threads)
    estimate = past.estimate_refused("m", KIND)
    assert estimate is not None
    assert estimate.calls == RECENT


def test_a_fault_of_its_own_is_no_estimate_and_no_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    past = history([50] * 20)
    monkeypatch.setattr(avoided, "_mean", lambda values: 1 // 0)
    monkeypatch.setattr(avoided, "_sample", lambda *call: 1 // 0)
    strict = guard.strict(on=False)
    try:
        past.record("m", KIND, Usage(1, 1))
        assert past.estimate_refused("m", KIND) is None
        assert past.estimate_rest("m", KIND, 0) is None
    finally:
        guard.strict(strict)


counts = st.integers(0, 100_000)


@given(st.lists(counts, min_size=10, max_size=RECENT))
def test_an_estimate_lies_within_what_was_seen_and_not_above_its_mean(
    outputs: list[int],
) -> None:
    past = history(outputs)
    with localcontext(Context(prec=2, traps=[Inexact])):
        past.record("m", KIND, None)
        estimate = past.estimate_refused("m", KIND)
    assert estimate is not None
    assert min(outputs) <= estimate.output <= max(outputs)
    assert estimate.output <= sum(outputs) / len(outputs) + 0.5
    assert estimate.usd is not None
    # The dollars follow the tokens: a mill each, and a cent for the input.
    assert abs(estimate.usd - USD("0.01") - USD("0.001") * estimate.output) < USD(
        "0.001"
    )


@given(st.lists(counts, min_size=1, max_size=RECENT), counts, st.none() | counts)
def test_a_rest_ends_within_what_was_seen_and_allowed(
    outputs: list[int], so_far: int, most: int | None
) -> None:
    estimate = history(outputs).estimate_rest("m", KIND, so_far, most)
    if most is not None and so_far >= most:
        assert estimate == Estimate(0, 0, USD(0), 0)
        return
    longer = [output for output in outputs if output > so_far]
    if len(longer) < LEAST_BEYOND:
        assert estimate is None
        return
    assert estimate is not None
    assert estimate.input == 0
    assert estimate.calls == len(longer)
    assert so_far < so_far + max(1, estimate.output) <= max(longer)
    if most is not None:
        assert so_far + estimate.output <= most
    assert estimate.usd is not None
    assert estimate.usd >= 0


@given(st.lists(counts, min_size=10, max_size=40), st.integers(0, 10**12))
def test_the_largest_value_may_be_anything_larger(
    outputs: list[int], more: int
) -> None:
    outputs.sort()
    grown = [*outputs[:-1], outputs[-1] + more]
    before, after = (
        history(seen).estimate_refused("m", KIND) for seen in (outputs, grown)
    )
    assert before == after


def test_over_many_cuts_the_claim_is_a_little_below_the_truth() -> None:
    """Answers of very unlike lengths, and users who leave when they have had enough."""
    dice = random.Random(7)  # noqa: S311  a fixed draw, nothing secret

    def length() -> int:
        return round(dice.lognormvariate(6, 0.7))

    past = Avoided()
    for _ in range(RECENT):
        past.record("m", KIND, Usage(100, length()))
    claimed = truth = 0
    for _ in range(2_000):
        whole = length()
        so_far = round(dice.expovariate(1 / 300))
        if so_far >= whole:
            continue  # it was over before
        estimate = past.estimate_rest("m", KIND, so_far)
        if estimate is not None:
            claimed += estimate.output
            truth += whole - so_far
    assert 0.8 * truth < claimed <= 1.02 * truth


def test_over_many_refusals_the_claim_is_a_little_below_the_truth() -> None:
    dice = random.Random(11)  # noqa: S311  as above
    lengths = (round(dice.lognormvariate(6, 0.7)) for _ in itertools.count())
    past = history(itertools.islice(lengths, RECENT))
    estimate = past.estimate_refused("m", KIND)
    assert estimate is not None
    truth = sum(itertools.islice(lengths, 2_000)) / 2_000
    assert 0.8 * truth < estimate.output <= 1.02 * truth
