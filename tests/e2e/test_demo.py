"""The whole demo on real servers: what hangup measured against what happened.

Three populations, one for each way a provider can make it hard: OpenAI's chat, where a
stream that is cut never tells its usage; Anthropic's messages; and a provider that is
slow to begin and bills to the end of what nobody reads any more.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from hangup.cli.app import app
from hangup.demo import harness
from hangup.demo.brain import planned_tools
from hangup.demo.harness import run_demo
from hangup.demo.population import population
from hangup.demo.truth import calls_by_visit
from hangup.demo.workload import CHECKS, CLAIMS, TOOLS, Setting, call_seed, plan_path

if TYPE_CHECKING:
    from pathlib import Path

    from hangup.demo.results import Demo, Pass

_USERS, _SEED = 32, 1
_FATES = pytest.mark.parametrize("fate", ["delivered", "sunk", "wasted"])
_MODES = pytest.mark.parametrize("mode", ["observe", "enforce"])
_LAG = 0.1
"""Seconds a busy machine may take to tell hangup that a user left."""
_RACES = 3
"""Calls that may have been cut before the model, or after the caller, knew of them."""


@pytest.fixture(scope="module")
def demo() -> Demo:
    return asyncio.run(run_demo(_USERS, _SEED))


@pytest.fixture(scope="module")
def billing() -> Demo:
    """Return a demo whose provider begins late and does not stop at the close."""
    setting = Setting(on_close="finish", first_token=0.6)
    return asyncio.run(run_demo(14, 3, setting))


@pytest.fixture(scope="module")
def commanded(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path, Demo]:
    """Return what the command printed of an Anthropic model, its picture, the demo."""
    picture = tmp_path_factory.mktemp("demo") / "picture.html"
    kept = []

    async def keeping(*args: Any, **more: Any) -> Demo:
        kept.append(await run_demo(*args, **more))
        return kept[0]

    options = ["--users", "16", "--seed", "2", "--provider", "anthropic"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(harness, "run_demo", keeping)
        result = CliRunner().invoke(
            app, ["demo", *options, "--json", "--html", str(picture)]
        )
    assert result.exit_code == 0, result.output
    return result.stdout, picture, kept[0]


@pytest.fixture
def anthropic(commanded: tuple[str, Path, Demo]) -> Demo:
    return commanded[2]


def _fate_agrees(one: Pass, fate: str) -> None:
    """Each fate is measured within 2 % or 20 tokens of what the wire told.

    An estimate may be 15 % off. And between sunk and wasted there is room for what
    no client can place: see ``_unplaced``. The sum of all has no such room.
    """
    truth, measured = one.truth.to_json(), one.measured.to_json()
    spent = truth[f"{fate}_tokens"]
    guessed = truth.get(f"{fate}_estimated_tokens", 0)
    margin = max(20.0, 0.02 * (spent - guessed)) + 0.15 * guessed
    if fate != "delivered":
        margin += _unplaced(one)
    assert abs(measured[f"{fate}_tokens"] - spent) <= margin, (fate, truth, measured)


def _unplaced(one: Pass) -> float:
    """Return the tokens that may be on either side of T0.

    The input of calls that began before hangup could know of T0, milliseconds after
    the user's own clock; and of whole answers under way, what dividing their output
    evenly from the request on is off: the model alone knows when it came.
    """
    late = off = 0.0
    for visit, calls in calls_by_visit(one.visits, one.calls):
        t0 = visit.t0
        for call in calls if t0 is not None else ():
            assert t0 is not None
            assert call.closed is not None
            if t0 <= call.opened < t0 + _LAG:
                late += call.input_tokens
            elif call.opened < t0 < call.closed and not (call.stream or call.cut):
                share = (t0 - call.opened) / (call.closed - call.opened)
                came = sum(tokens for at, tokens in call.chunks if at < t0)
                off += call.output_tokens * share - came
    return late + abs(off)


def _sums_agree(one: Pass) -> None:
    """Whatever side of T0 it is on, nothing is lost and nothing counted twice."""
    truth, measured = one.truth, one.measured
    spent = truth.delivered_tokens + truth.sunk_tokens + truth.wasted_tokens
    known = measured.delivered_tokens + measured.sunk_tokens + measured.wasted_tokens
    guessed = truth.estimated_tokens
    margin = max(20.0, 0.02 * (spent - guessed)) + 0.15 * guessed
    assert abs(known - spent) <= margin, (truth, measured)


def _estimates_agree(one: Pass) -> None:
    """Where only text was there, the estimate is within 15 % in total.

    A call that the model had answered, and that was cut before the answer was read, is
    an estimate of hangup's alone.
    """
    truth, measured = one.truth.estimated_tokens, one.measured.estimated_tokens
    unread = sum(
        call.total_tokens
        for visit, calls in calls_by_visit(one.visits, one.calls)
        for call in calls
        if visit.t0 is not None
        and call.closed is not None
        and not call.cut
        and visit.t0 - 0.02 <= call.closed <= visit.t0 + _LAG
    )
    assert truth > 0
    margin = max(20.0, 0.15 * truth)
    assert truth - margin <= measured <= truth + margin + unread, (measured, truth)


@_MODES
@_FATES
def test_each_fate_is_measured_as_it_was(demo: Demo, mode: str, fate: str) -> None:
    one = demo.passes[mode]
    if (mode, fate) != ("enforce", "wasted"):
        assert one.truth.to_json()[f"{fate}_tokens"] > 1000
    _fate_agrees(one, fate)


@_MODES
def test_over_both_sides_of_t0_nothing_is_lost_or_counted_twice(
    demo: Demo, mode: str
) -> None:
    _sums_agree(demo.passes[mode])


def test_in_observe_nothing_is_cut_refused_or_unknown(demo: Demo) -> None:
    truth, measured = demo.observe.truth, demo.observe.measured
    assert (truth.cut_calls, truth.unknown_tokens, truth.estimated_tokens) == (0, 0, 0)
    assert measured.refusals == 0
    assert measured.unknown_usage_calls == measured.unknown_tokens_bound == 0


def test_in_enforce_what_was_cut_untold_is_estimated_within_fifteen_percent(
    demo: Demo,
) -> None:
    _estimates_agree(demo.enforce)


def test_in_enforce_calls_that_nobody_can_know_are_counted_and_bounded(
    demo: Demo,
) -> None:
    truth, measured = demo.enforce.truth, demo.enforce.measured
    blind = [call for call in demo.enforce.calls if call.cut and not call.stream]
    assert blind
    # A stream that was cut before its first token is as blind.
    assert len(blind) <= measured.unknown_usage_calls <= truth.cut_calls + _RACES
    assert measured.unknown_tokens_bound >= truth.unknown_tokens > 0


def test_enforcing_leaves_next_to_nothing_of_the_waste(demo: Demo) -> None:
    """The goal is 0.03; one call that began as its user left is 0.01 to 0.025.

    How many do depends on how soon a busy machine reads the end of a connection, so the
    bound here leaves room for two more.
    """
    assert demo.wasted_tokens_ratio <= 0.08


def test_enforcing_closes_the_last_model_call_within_a_moment(demo: Demo) -> None:
    """The goal is 0.10 s on a machine of one's own; the bound is for a shared one."""
    assert demo.enforce.stop_seconds.p95 <= 0.30
    assert demo.observe.stop_seconds.p95 > 1.0


def test_no_answer_in_time_is_missing_or_different(demo: Demo) -> None:
    assert demo.broken_answers == ()


def test_answers_past_their_deadline_are_the_ones_lost(demo: Demo) -> None:
    late = demo.observe.runs.late
    assert late > 0
    assert len(demo.lost_answers) == late
    assert demo.enforce.runs.abandoned["deadline"] == late


def test_every_run_ends_in_exactly_one_way(demo: Demo) -> None:
    for one in demo.passes.values():
        ended = one.runs.delivered + one.runs.late + sum(one.runs.abandoned.values())
        assert ended == one.runs.runs == _USERS
    assert demo.observe.runs.abandoned == {"disconnect": 13}
    assert demo.enforce.runs.abandoned["disconnect"] == 13


@_FATES
def test_a_slow_first_token_does_not_move_a_fate_in_observe(
    billing: Demo, fate: str
) -> None:
    _fate_agrees(billing.observe, fate)
    _sums_agree(billing.observe)


def test_what_a_provider_bills_after_the_close_is_under_the_bound(
    billing: Demo,
) -> None:
    truth, measured = billing.enforce.truth, billing.enforce.measured
    assert truth.wasted_unknown_tokens > 100
    known = measured.wasted_tokens + measured.unknown_tokens_bound
    billed = truth.wasted_tokens + truth.unknown_tokens
    assert known + _unplaced(billing.enforce) >= billed
    _estimates_agree(billing.enforce)


def test_every_call_that_was_cut_is_of_unknown_outcome(billing: Demo) -> None:
    truth, measured = billing.enforce.truth, billing.enforce.measured
    assert truth.cut_calls <= measured.outcome_unknown_calls
    assert measured.outcome_unknown_calls <= truth.cut_calls + _RACES


@_MODES
@_FATES
def test_with_anthropic_each_fate_is_measured_as_it_was(
    anthropic: Demo, mode: str, fate: str
) -> None:
    _fate_agrees(anthropic.passes[mode], fate)
    _sums_agree(anthropic.passes[mode])


def test_with_anthropic_what_was_cut_untold_is_estimated(anthropic: Demo) -> None:
    _estimates_agree(anthropic.enforce)


def test_with_anthropic_no_answer_in_time_is_missing_or_different(
    anthropic: Demo,
) -> None:
    assert anthropic.broken_answers == ()


def test_whoever_provides_the_model_the_same_people_take_the_same_rounds(
    demo: Demo, anthropic: Demo
) -> None:
    """In observe every answer is worked out to its end, whether or not awaited."""
    for one in (demo, anthropic):
        asking = 0
        for user in population(one.users, one.seed):
            first = call_seed(user.seed, plan_path(1))
            asking += len({"search", "read"} & {*planned_tools(first, 0, TOOLS)})
        always = 3 + len([CLAIMS, *CHECKS]) + 1  # plans, the subagent's, the answer
        assert len(one.observe.calls) == asking + always * one.users


def test_the_command_prints_one_object_and_draws_the_picture(
    commanded: tuple[str, Path, Demo],
) -> None:
    printed, picture, demo = commanded
    document = json.loads(printed)
    assert document == demo.to_json()
    assert (document["users"], document["provider"]) == (16, "anthropic")
    assert list(document["passes"]) == ["observe", "enforce"]
    assert "user left" in picture.read_text(encoding="utf-8")
