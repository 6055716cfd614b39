from __future__ import annotations

from collections import Counter

import pytest

from hangup.demo.asked import Asked
from hangup.demo.brain import Script, compose
from hangup.demo.forecast import forecast
from hangup.demo.population import Kind, population
from hangup.demo.workload import SCRIPT, call_seed, most_tokens, plan_path


def test_the_same_seed_gives_the_same_people() -> None:
    assert population(20, 3) == population(20, 3)
    assert population(20, 3) != population(20, 4)


def test_four_in_ten_leave_and_one_in_ten_has_a_close_budget() -> None:
    kinds = Counter(user.kind for user in population(100, 1))
    assert kinds == {Kind.LEAVES: 40, Kind.NEAR: 10, Kind.STAYS: 50}


def test_only_leavers_leave_and_they_leave_before_the_answer() -> None:
    for user in population(100, 1):
        assert (user.leaves_after is not None) == (user.kind is Kind.LEAVES)
        if user.leaves_after is not None:
            assert 0 < user.leaves_after < forecast(user.seed)


def test_leavers_use_both_routes() -> None:
    routes = {u.route for u in population(20, 1) if u.kind is Kind.LEAVES}
    assert routes == {"/research", "/research/stream"}


def test_close_budgets_end_within_a_second_of_the_answer_on_either_side() -> None:
    slack = [
        user.budget - forecast(user.seed)
        for user in population(100, 1)
        if user.budget is not None
    ]
    assert len(slack) == 10
    assert all(0.3 < abs(seconds) < 0.9 for seconds in slack)
    assert sum(seconds < 0 for seconds in slack) == 5


def test_the_forecast_knows_a_call_from_its_seed_alone() -> None:
    path = plan_path(1)
    asked = Asked("m", most=most_tokens(path))
    reply = compose(asked, call_seed(9, path), SCRIPT)
    slow = compose(asked, call_seed(9, path), Script(plans_tools=True, rate=1.0))
    assert reply.output_tokens == slow.output_tokens
    assert reply.chunks[-1].offset < forecast(9)


def test_a_slow_first_token_makes_answers_longer_and_people_more_patient() -> None:
    usual, slow = population(100, 1), population(100, 1, first_token=1.0)
    assert [user.name for user in usual] == [user.name for user in slow]
    for quick, patient in zip(usual, slow, strict=True):
        assert quick.kind == patient.kind
        if quick.leaves_after is not None and patient.leaves_after is not None:
            assert patient.leaves_after > quick.leaves_after
        if quick.budget is not None and patient.budget is not None:
            assert patient.budget > quick.budget + 4.0


@pytest.mark.parametrize("users", [1, 2, 5])
def test_a_small_population_has_everybody_in_it(users: int) -> None:
    assert len({user.name for user in population(users, 1)}) == users
