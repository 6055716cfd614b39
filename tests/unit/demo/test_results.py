from __future__ import annotations

import json

from support.demo import a_call, a_demo, a_pass, a_user, a_visit


def test_the_json_has_exactly_the_fields_that_were_promised() -> None:
    visits = [a_visit(left=1.0)]
    demo = a_demo(a_pass("observe", visits), a_pass("enforce", visits))
    document = json.loads(json.dumps(demo.to_json()))
    assert set(document) == {
        "version",
        "users",
        "seed",
        "provider",
        "provider_on_close",
        "first_token_seconds",
        "passes",
        "wasted_tokens_ratio",
    }
    assert list(document["passes"]) == ["observe", "enforce"]
    for one in document["passes"].values():
        assert set(one) == {
            "runs",
            "delivered",
            "late",
            "abandoned",
            "model_calls",
            "truth",
            "measured",
            "stop_seconds",
        }
        assert set(one["truth"]) == {
            "delivered_tokens",
            "sunk_tokens",
            "wasted_tokens",
            "wasted_calls",
            "cut_calls",
            "unknown_tokens",
            "wasted_unknown_tokens",
            "estimated_tokens",
            "sunk_estimated_tokens",
            "wasted_estimated_tokens",
        }
        assert set(one["measured"]) == {
            "delivered_tokens",
            "sunk_tokens",
            "wasted_tokens",
            "wasted_usd",
            "refusals",
            "unknown_usage_calls",
            "unknown_tokens_bound",
            "outcome_unknown_calls",
            "estimated_tokens",
            "sunk_estimated_tokens",
            "wasted_estimated_tokens",
        }
        assert set(one["stop_seconds"]) == {"p50", "p95", "max"}


def test_the_ratio_is_truth_of_enforce_over_truth_of_observe() -> None:
    watched, enforced = a_visit(left=1.0), a_visit(left=1.0, mode="enforce")
    demo = a_demo(
        a_pass("observe", [watched], [a_call(2, 3, input_tokens=400)]),
        a_pass(
            "enforce", [enforced], [a_call(2, 3, input_tokens=4, user="enforce/u000")]
        ),
    )
    assert demo.wasted_tokens_ratio == 0.01


def test_what_a_provider_generated_unseen_is_waste_in_the_ratio() -> None:
    cut = a_call(0, 1.1, user="enforce/u000", chunks=((4.0, 50),), cut=True)
    demo = a_demo(
        a_pass("observe", [a_visit(left=1.0)], [a_call(2, 3, input_tokens=100)]),
        a_pass("enforce", [a_visit(left=1.0, mode="enforce")], [cut]),
    )
    assert demo.enforce.truth.wasted_tokens == 0
    assert demo.wasted_tokens_ratio == 0.5


def test_the_ratio_of_no_waste_at_all_is_zero() -> None:
    visits = [a_visit(answer="yes")]
    demo = a_demo(a_pass("observe", visits), a_pass("enforce", visits))
    assert demo.wasted_tokens_ratio == 0.0


def test_an_answer_past_its_deadline_that_enforce_gives_not_is_lost_not_broken() -> (
    None
):
    user = a_user("late", budget=2.0)
    demo = a_demo(
        a_pass("observe", [a_visit(user=user, answer="yes", finished=2.4)]),
        a_pass("enforce", [a_visit(user=user, finished=2.0)]),
    )
    assert demo.lost_answers == ("late",)
    assert demo.broken_answers == ()


def test_an_answer_in_time_that_is_missing_or_different_is_broken() -> None:
    users = [a_user(name, budget=2.0) for name in ("missing", "changed", "same")]
    observe = [a_visit(user=user, answer="yes", finished=1.0) for user in users]
    enforce = [
        a_visit(user=users[0], finished=2.0),
        a_visit(user=users[1], answer="no", finished=1.0),
        a_visit(user=users[2], answer="yes", finished=1.0),
    ]
    demo = a_demo(a_pass("observe", observe), a_pass("enforce", enforce))
    assert demo.broken_answers == ("missing", "changed")
    assert demo.lost_answers == ()
