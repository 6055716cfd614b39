"""When work sent to a queue is tied to a run, and what its worker makes of it."""

from __future__ import annotations

import contextlib
import math
import uuid
from typing import TYPE_CHECKING, Any

import pytest

import hangup
from hangup import config
from hangup.config import Mode
from hangup.core.cause import Cause
from hangup.core.remote import Verdict
from hangup.core.scope import RunScope
from hangup.errors import RunAbandoned, Stop
from hangup.otel import board, errands, wire
from hangup.otel.board import Line
from hangup.otel.errands import Errand
from hangup.testing import FakeClock

if TYPE_CHECKING:
    from hangup.core.run import Run

TOKEN = "0123456789abcdef" * 2
KEY = f"{TOKEN}-0000beef"


def a_run(clock: FakeClock, budget: float | None = 10.0, **options: Any) -> RunScope:
    return RunScope(budget, name="user", clock=clock, **options)


def an_errand(clock: FakeClock, left: float | None = 10.0, **parts: Any) -> Errand:
    unix = None if left is None else clock.wall() + left
    given = {"left": left, "deadline_unix": unix, "mode": Mode.ENFORCE, **parts}
    return Errand(wire.Inbound(TOKEN, **given), KEY)


# What is tied


def test_a_task_is_tied_to_the_run_that_sends_it_and_to_none_elsewhere() -> None:
    clock = FakeClock()
    assert errands.tied_run("ask") is None
    with a_run(clock) as run:
        assert errands.tied_run("ask") is run
        with hangup.detached():
            assert errands.tied_run("ask") is None
        with hangup.cleanup():
            assert errands.tied_run("ask") is None
        with a_run(clock) as child:
            assert errands.tied_run("ask") is child


def test_a_task_that_is_irreversible_by_name_is_not_tied() -> None:
    config.use(config.with_keywords(config.Settings(), irreversible=("charge",)))
    with a_run(FakeClock()) as run:
        assert errands.tied_run("charge") is None
        assert errands.tied_run("ask") is run


def test_a_latent_run_and_one_that_is_off_or_over_tie_nothing() -> None:
    clock = FakeClock()
    with a_run(clock, latent=True, server=True) as run:
        assert errands.tied_run("ask") is None
        run.begin_spending()
        assert errands.tied_run("ask") is run
        run.deliver()
        assert errands.tied_run("ask") is None
    with a_run(clock, mode="off"):
        assert errands.tied_run("ask") is None


def test_what_a_message_carries_is_read_back() -> None:
    with a_run(FakeClock()) as run:
        carried = errands.headers(run)
        again = errands.headers(run)
    assert carried[errands.BOARD_HEADER] == again[errands.BOARD_HEADER]
    errand = errands.read(carried.get)
    assert errand is not None
    assert errand.token == run.id
    assert errand.inbound.left == pytest.approx(10.0)
    assert errand.key == carried[errands.BOARD_HEADER]


@pytest.mark.parametrize("header", [None, b"t", 7, "", 't="short"', "x" * 9_000, "t"])
def test_a_malformed_message_is_nobodys(header: object) -> None:
    assert errands.read({wire.HEADER: header, "hangup-board": KEY}.get) is None


def test_a_board_key_of_another_run_is_not_believed() -> None:
    with a_run(FakeClock()) as run:
        carried = errands.headers(run) | {errands.BOARD_HEADER: "f" * 32 + "-0000beef"}
    errand = errands.read(carried.get)
    assert errand is not None
    assert errand.key is None


# How long it has


def test_e1_the_time_in_the_queue_counts_by_the_boards_clock() -> None:
    clock = FakeClock()
    errand = an_errand(clock)
    for skew in (-120.0, 120.0):
        clock.set_wall(clock.wall() + skew)
        assert errands.left_of(errand, Line(board.OPEN, left=6.0), clock) == 6.0


def test_without_a_board_the_wall_clock_tells_and_never_gives_more() -> None:
    clock = FakeClock()
    errand = an_errand(clock)
    clock.advance(4.0)
    assert errands.left_of(errand, None, clock) == pytest.approx(6.0)
    clock.set_wall(clock.wall() - 60.0)  # behind: it looks as if sent in the future
    assert errands.left_of(errand, None, clock) == pytest.approx(10.0)


def test_a_task_without_a_deadline_has_the_most_that_is_accepted() -> None:
    clock = FakeClock()
    errand = an_errand(clock, None)
    config.use(config.with_keywords(config.Settings(), max_budget=50))
    assert errands.left_of(errand, None, clock) == 50
    assert errands.left_of(an_errand(clock, 90.0), None, clock) == 50
    line = Line(board.OPEN, left=math.inf)
    assert errands.left_of(errand, line, clock) == 50


def test_a_wall_clock_alone_is_in_doubt_for_as_long_as_a_line_may_come() -> None:
    clock = FakeClock()
    errand = an_errand(clock)
    assert not errands.in_doubt(errand, None, clock)
    clock.set_wall(clock.wall() + 120.0)
    assert errands.in_doubt(errand, None, clock)
    assert not errands.in_doubt(errand, Line(board.OPEN, left=6.0), clock)
    assert not errands.in_doubt(Errand(errand.inbound, None), None, clock)


# How it begins


def _begun(
    clock: FakeClock,
    errand: Errand,
    line: Line | None = None,
    killed: Verdict | None = None,
) -> tuple[BaseException | None, Run]:
    with (
        contextlib.suppress(RunAbandoned),
        errands.scope(errand, line, "ask", clock) as run,
    ):
        return errands.begin(run, errand, line, killed), run
    raise AssertionError("unreachable")


def test_a_task_in_time_begins_as_part_of_the_run() -> None:
    clock = FakeClock()
    refusal, run = _begun(clock, an_errand(clock), Line(board.OPEN, left=5.0))
    assert refusal is None
    assert (run.id, run.joined, run.mode) == (TOKEN, True, Mode.ENFORCE)
    assert run.deadline.remaining() == pytest.approx(5.0)


def test_a_task_whose_run_has_no_time_left_is_refused() -> None:
    clock = FakeClock()
    errand = an_errand(clock, 1.0)
    clock.advance(2.0)
    refusal, run = _begun(clock, errand)
    assert isinstance(refusal, Stop)
    assert run.cause is Cause.DEADLINE


def test_a_task_whose_run_was_stopped_is_refused_with_its_cause() -> None:
    clock = FakeClock()
    line = Line(board.ABANDONED, Cause.SUPERSEDED, 5.0, 1.0)
    refusal, run = _begun(clock, an_errand(clock), line)
    assert isinstance(refusal, Stop)
    assert run.cause is Cause.SUPERSEDED


def test_in_observe_a_stopped_task_runs_and_is_booked_as_waste() -> None:
    clock = FakeClock()
    for errand, line in (
        (an_errand(clock, mode=Mode.OBSERVE), Line(board.ABANDONED, Cause.DISCONNECT)),
        (an_errand(clock, mode=Mode.OBSERVE, gone=2.0), None),
        (an_errand(clock, mode=Mode.OFF, gone=2.0), None),
    ):
        refusal, run = _begun(clock, errand, line)
        assert refusal is None
        assert run.cause is Cause.DISCONNECT
        assert run.mode is Mode.OBSERVE


def test_a_ceiling_on_the_worker_binds_what_the_sender_enforces() -> None:
    config.use(config.with_keywords(config.Settings(), mode="observe"))
    clock = FakeClock()
    errand = an_errand(clock, 1.0)
    clock.advance(2.0)
    refusal, run = _begun(clock, errand)
    assert refusal is None
    assert run.mode is Mode.OBSERVE


@pytest.mark.parametrize("mode", ["observe", "enforce"])
@pytest.mark.parametrize("cause", [Cause.KILLED, Cause.SUPERSEDED])
def test_what_was_said_on_the_bus_while_nobody_held_the_run_holds(
    cause: Cause, mode: str
) -> None:
    """A kill in every mode; a newer request where hangup may refuse."""
    clock = FakeClock()
    errand = an_errand(clock, mode=Mode(mode))
    refusal, run = _begun(clock, errand, None, Verdict(cause, "from outside"))
    stopped = mode == "enforce" or cause is Cause.KILLED
    assert (refusal is not None) == stopped
    abandonment = run.token.abandonment
    assert (abandonment and abandonment.cause) == (cause if stopped else None)


def test_a_run_that_had_its_answer_leaves_the_task_to_itself() -> None:
    assert errands.is_over(Line(board.DELIVERED))
    assert not errands.is_over(Line(board.OPEN))
    assert not errands.is_over(None)


def test_what_a_task_sends_itself_stands_under_the_same_key() -> None:
    clock = FakeClock()
    errand = an_errand(clock)
    with errands.scope(errand, None, "ask", clock) as run:
        assert errands.begin(run, errand, None, None) is None
        assert errands.key_of(run) == (KEY, True)
        assert errands.headers(run)[errands.BOARD_HEADER] == KEY
        run.deliver()


# The line on one task


def test_the_stop_of_a_part_of_a_run_is_said_of_its_tasks_alone() -> None:
    clock = FakeClock()
    with contextlib.suppress(RunAbandoned), a_run(clock) as run:
        assert errands.task_line(run, "7") is None
        with contextlib.suppress(RunAbandoned), a_run(clock) as child:
            child.cancel("superseded")
            clock.advance(1.0)
            said = errands.task_line(child, "7")
        run.cancel("killed")
        assert errands.task_line(run, "7") is None  # the line of the run says it
    assert said is not None
    post, text = said
    assert post.key == errands.task_key(errands.key_of(run)[0], "7")
    line = board.read(text, post.lifetime(clock.monotonic()), clock.wall())
    assert line is not None
    assert line.cause is Cause.SUPERSEDED
    assert line.ago == pytest.approx(1.0, abs=0.01)


def test_only_an_id_that_a_library_made_is_of_one_task_alone() -> None:
    assert errands.is_own("0190b6a6-9e1c-7a2e-8c3d-0123456789ab")
    assert errands.is_own(str(uuid.uuid4()))
    for given in ("", "user-7", "sync", "7"):
        assert not errands.is_own(given)


def test_the_line_of_the_task_goes_before_that_of_its_run() -> None:
    gone = Line(board.ABANDONED, Cause.KILLED, math.inf, 1.0)
    going = Line(board.OPEN, left=5.0)
    assert errands.verdict([]) is None
    assert errands.verdict([going, None]) is going
    assert errands.verdict([going, going]) is going
    found = errands.verdict([going, gone])
    assert found is not None
    assert (found.cause, found.left, found.ago) == (Cause.KILLED, 5.0, 1.0)
    assert errands.verdict([None, gone]) is not None
