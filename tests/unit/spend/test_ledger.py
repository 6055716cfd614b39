"""The ledger posts every portion exactly once, whatever the order of events."""

from __future__ import annotations

import threading
from decimal import Decimal
from typing import TYPE_CHECKING

import pytest

from hangup.spend.fate import Basis, Fate
from hangup.spend.ledger import Ledger, Posting, Total
from hangup.spend.pricing import Cost
from hangup.spend.usage import Usage

if TYPE_CHECKING:
    from collections.abc import Callable

USED = Usage(100, 60)
PAID = Cost(Decimal("0.4"), Decimal("0.6"))


def made(capacity: int = 512) -> tuple[Ledger, list[Posting]]:
    posted: list[Posting] = []
    return Ledger(posted.extend, capacity=capacity), posted


def call(  # noqa: PLR0913  what is known of a call
    ledger: Ledger,
    start: float,
    end: float,
    usage: Usage | None = USED,
    *,
    kind: str = "inference",
    model: str = "m",
    first: float | None = None,
    cost: Cost | None = None,
) -> None:
    ledger.enter((kind, model, start, first, end, usage, cost, "span", None))


def rows(posted: list[Posting]) -> list[tuple[Fate, int, int, int]]:
    return [(post.fate, post.input, post.output, post.calls) for post in posted]


def test_nothing_is_posted_before_the_fate_is_known() -> None:
    ledger, posted = made()
    call(ledger, 0.0, 1.0)
    assert posted == []
    assert ledger.totals() == {fate: Total() for fate in Fate}


def test_a_posting_carries_everything_known_of_its_call() -> None:
    ledger, posted = made()
    call(ledger, 0.0, 2.0, cost=PAID)
    ledger.abandon(5.0, "disconnect")
    assert posted == [
        Posting(
            fate=Fate.SUNK,
            kind="inference",
            model="m",
            input=100,
            output=60,
            calls=1,
            seconds=2.0,
            basis=Basis.REPORTED,
            span_context="span",
            cause="disconnect",
            usd=Decimal(1),
        )
    ]


def test_abandonment_posts_what_ended_as_sunk_and_the_rest_when_it_ends() -> None:
    ledger, posted = made()
    call(ledger, 0.0, 1.0)
    ledger.abandon(5.0, "disconnect")
    assert rows(posted) == [(Fate.SUNK, 100, 60, 1)]
    call(ledger, 2.0, 8.0)
    call(ledger, 9.0, 10.0)
    assert rows(posted)[1:] == [
        (Fate.SUNK, 100, 0, 1),
        (Fate.SUNK, 0, 30, 0),
        (Fate.WASTED, 0, 30, 0),
        (Fate.WASTED, 100, 60, 1),
    ]
    assert {post.cause for post in posted} == {"disconnect"}


def test_a_t0_noticed_late_still_divides_the_calls_that_ended_meanwhile() -> None:
    ledger, posted = made()
    call(ledger, 0.0, 4.0)
    call(ledger, 4.0, 8.0, first=5.0)
    call(ledger, 9.0, 10.0)
    ledger.abandon(6.5, "disconnect")
    assert [
        (*row, post.basis) for row, post in zip(rows(posted), posted, strict=True)
    ] == [
        (Fate.SUNK, 100, 60, 1, Basis.REPORTED),
        (Fate.SUNK, 100, 0, 1, Basis.REPORTED),
        (Fate.SUNK, 0, 30, 0, Basis.PRORATED),
        (Fate.WASTED, 0, 30, 0, Basis.PRORATED),
        (Fate.WASTED, 100, 60, 1, Basis.REPORTED),
    ]


def test_output_is_divided_since_the_first_token() -> None:
    ledger, posted = made()
    call(ledger, 100.0, 110.0, first=106.0)
    ledger.abandon(105.0, "disconnect")
    assert rows(posted) == [(Fate.SUNK, 100, 0, 1), (Fate.WASTED, 0, 60, 0)]


def test_delivery_posts_delivered_and_then_background_work() -> None:
    ledger, posted = made()
    call(ledger, 0.0, 1.0)
    ledger.deliver(4.0)
    call(ledger, 2.0, 6.0)
    call(ledger, 7.0, 8.0)
    assert rows(posted) == [
        (Fate.DELIVERED, 100, 60, 1),
        (Fate.DELIVERED, 100, 0, 1),
        (Fate.DELIVERED, 0, 30, 0),
        (Fate.AFTER, 0, 30, 0),
        (Fate.AFTER, 100, 60, 1),
    ]
    assert {post.cause for post in posted} == {"none"}


def test_close_posts_as_delivered_also_what_ends_later() -> None:
    ledger, posted = made()
    call(ledger, 0.0, 1.0)
    ledger.close()
    ledger.close()
    call(ledger, 2.0, 6.0)
    assert rows(posted) == [(Fate.DELIVERED, 100, 60, 1)] * 2


def test_close_at_a_moment_keeps_later_work_apart() -> None:
    ledger, posted = made()
    ledger.close(5.0)
    call(ledger, 6.0, 7.0)
    assert rows(posted) == [(Fate.AFTER, 100, 60, 1)]


@pytest.mark.parametrize("first", ["abandon", "deliver", "close"])
def test_the_first_decision_wins_and_nothing_is_posted_twice(first: str) -> None:
    ledger, posted = made()
    call(ledger, 0.0, 1.0)
    decide: dict[str, Callable[[], None]] = {
        "abandon": lambda: ledger.abandon(5.0, "killed"),
        "deliver": lambda: ledger.deliver(5.0),
        "close": ledger.close,
    }
    decide[first]()
    before = list(posted)
    for other in decide.values():
        other()
    call(ledger, 1.0, 2.0)
    assert len(before) == 1
    assert posted[:1] == before
    assert [post.fate for post in posted] == [before[0].fate] * 2


def test_a_call_of_unknown_usage_posts_its_time_and_no_tokens() -> None:
    ledger, posted = made()
    call(ledger, 0.0, 4.0, None)
    ledger.abandon(3.0, "deadline")
    assert [(post.fate, post.input, post.output, post.seconds) for post in posted] == [
        (Fate.SUNK, 0, 0, 3.0),
        (Fate.WASTED, 0, 0, 1.0),
    ]


def test_dollars_follow_the_tokens_and_sum_to_the_cost() -> None:
    ledger, posted = made()
    third = Cost(Decimal("0.1"), Decimal("0.01"))
    call(ledger, 0.0, 3.0, Usage(1, 3), cost=third)
    ledger.abandon(1.0, "disconnect")
    dollars = [post.usd for post in posted]
    assert dollars == [
        Decimal("0.1"),
        Decimal("0.003333333333333"),
        Decimal("0.006666666666667"),
    ]


def test_a_call_without_a_price_is_not_zero_dollars() -> None:
    ledger, posted = made()
    call(ledger, 0.0, 1.0)
    call(ledger, 0.0, 1.0, cost=PAID)
    ledger.close()
    assert [post.usd for post in posted] == [None, Decimal(1)]
    delivered = ledger.totals()[Fate.DELIVERED]
    assert (delivered.usd, delivered.unpriced) == (Decimal(1), 160)


def test_totals_say_how_many_tokens_were_divided() -> None:
    ledger, _ = made()
    call(ledger, 0.0, 2.0)
    ledger.abandon(1.0, "disconnect")
    totals = ledger.totals()
    assert totals[Fate.SUNK] == Total(100, 30, 1, 1.0, divided=30, unpriced=130)
    assert totals[Fate.WASTED] == Total(0, 30, 0, 1.0, divided=30, unpriced=30)


def test_folded_calls_keep_exact_totals_and_divide_by_time() -> None:
    ledger, posted = made(capacity=1)
    for number in range(11):
        call(ledger, number * 1.0, number + 1.0, Usage(10, 4), cost=PAID)
    ledger.abandon(2.5, "disconnect")
    early, late, kept = posted
    assert (early.fate, early.input, early.output, early.calls) == (
        Fate.SUNK,
        25,
        10,
        3,
    )
    assert (late.fate, late.input, late.output, late.calls) == (Fate.WASTED, 75, 30, 7)
    assert (early.seconds, late.seconds) == (2.5, 7.5)
    assert (early.usd, late.usd) == (Decimal("2.5"), Decimal("7.5"))
    assert {early.basis, late.basis} == {Basis.PRORATED}
    assert (kept.fate, kept.input, kept.basis) == (Fate.WASTED, 10, Basis.REPORTED)


def test_a_fold_reaches_to_its_last_end_whatever_the_order_of_reports() -> None:
    ledger, posted = made(capacity=0)
    call(ledger, 2.0, 10.0, Usage(10, 10))
    call(ledger, 0.0, 1.0, Usage(10, 10))
    ledger.abandon(5.0, "disconnect")
    assert rows(posted) == [(Fate.SUNK, 10, 10, 1), (Fate.WASTED, 10, 10, 1)]


@pytest.mark.parametrize(("t0", "fate"), [(10.0, Fate.SUNK), (0.0, Fate.WASTED)])
def test_a_t0_outside_the_folded_interval_divides_nothing(
    t0: float, fate: Fate
) -> None:
    ledger, posted = made(capacity=0)
    for number in range(10):
        call(ledger, number * 1.0, number + 1.0)
    ledger.abandon(t0, "disconnect")
    assert rows(posted) == [(fate, 1000, 600, 10)]
    assert posted[0].basis is Basis.REPORTED


def test_kinds_models_and_unpriced_calls_are_folded_apart() -> None:
    ledger, posted = made(capacity=0)
    for _ in range(2):
        call(ledger, 0.0, 1.0, kind="tool", model="")
        call(ledger, 0.0, 1.0, model="a", cost=PAID)
        call(ledger, 0.0, 1.0, model="a")
    ledger.close()
    assert [(post.kind, post.model, post.calls, post.usd) for post in posted] == [
        ("tool", "", 2, None),
        ("inference", "a", 2, Decimal(2)),
        ("inference", "a", 2, None),
    ]


def test_a_ledger_stays_bounded_whatever_models_are_named() -> None:
    ledger, posted = made(capacity=0)
    for number in range(1000):
        call(ledger, 0.0, 1.0, Usage(1, 1), model=f"model-{number}")
    ledger.close()
    assert len(posted) <= 300
    assert sum(post.input for post in posted) == 1000
    assert posted[-1].model == "other"


class _Visiting(int):
    """A count that runs a callback when it is read, as a garbage collection may."""

    visit: Callable[[], None]

    def __bool__(self) -> bool:
        self.visit()
        return True


def visited(visit: Callable[[], None]) -> Usage:
    count = _Visiting(10)
    done: list[None] = []

    def once() -> None:
        if not done:
            done.append(None)
            visit()

    count.visit = once
    return Usage(count, 5)


def test_a_finaliser_that_closes_in_the_middle_of_a_fold_loses_nothing() -> None:
    ledger, posted = made(capacity=0)
    call(ledger, 0.0, 1.0, Usage(1, 1))
    call(ledger, 0.0, 1.0, visited(ledger.close))
    assert rows(posted) == [(Fate.DELIVERED, 11, 6, 2)]
    assert ledger.totals()[Fate.DELIVERED].input == 11


def test_a_finaliser_that_ends_a_call_in_the_middle_of_a_fold_loses_nothing() -> None:
    ledger, posted = made(capacity=0)
    call(ledger, 0.0, 1.0, Usage(1, 1))
    call(ledger, 0.0, 1.0, visited(lambda: call(ledger, 0.0, 1.0)))
    ledger.close()
    assert rows(posted) == [(Fate.DELIVERED, 111, 66, 3)]


def test_a_finaliser_that_closes_and_ends_a_call_loses_nothing() -> None:
    ledger, posted = made(capacity=0)

    def visit() -> None:
        ledger.abandon(0.5, "shutdown")
        call(ledger, 0.75, 1.0)

    call(ledger, 0.0, 1.0, visited(visit))
    assert sum(post.input for post in posted) == 110
    totals = ledger.totals()
    assert totals[Fate.SUNK].input + totals[Fate.WASTED].input == 110


def test_a_posting_callback_may_use_the_ledger() -> None:
    posted: list[Posting] = []

    def post(postings: list[Posting]) -> None:
        posted.extend(postings)
        if len(posted) == 1:
            call(ledger, 9.0, 10.0)

    ledger = Ledger(post)
    call(ledger, 0.0, 1.0)
    ledger.abandon(5.0, "killed")
    assert [post.fate for post in posted] == [Fate.SUNK, Fate.WASTED]


def test_threads_that_end_calls_while_the_run_is_abandoned_lose_none() -> None:
    ledger, posted = made(capacity=16)
    ready = threading.Barrier(5)

    def work() -> None:
        ready.wait()
        for number in range(400):
            call(ledger, number * 1.0, number + 1.0, Usage(3, 2))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    ready.wait()
    ledger.abandon(200.0, "disconnect")
    for thread in threads:
        thread.join()
    assert sum(post.calls for post in posted) == 1600
    assert sum(post.input for post in posted) == 4800
    assert sum(post.output for post in posted) == 3200
    assert sum(total.input for total in ledger.totals().values()) == 4800
