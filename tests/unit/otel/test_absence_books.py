"""However a caller leaves and comes back, each token has the one right fate."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.telemetry import chat, instrumented, opened, used

from hangup.config import Mode
from hangup.core.scope import RunScope
from hangup.errors import RunAbandoned, Stop
from hangup.otel import names
from hangup.spend.fate import Fate, split
from hangup.spend.usage import Usage
from hangup.testing import FakeClock

if TYPE_CHECKING:
    from support.telemetry import Telemetry

    from hangup.core.run import Run

GRACE = 8.0


class Naive:
    """What must happen, in as few words as possible: one caller, one grace."""

    def __init__(self, meant: str, deadline: float) -> None:
        self.meant = meant
        self.deadline = deadline
        self.left: float | None = None
        self.caller = "unknown"
        self.counted = ""
        # The moment, the fates before and after it, the cause and the outcome.
        self.fate: tuple[float, Fate, Fate, str, str] | None = None

    def settle(self, now: float) -> None:
        ends = math.inf
        if self.left is not None and self.meant == "grace":
            ends = self.left + GRACE
        if self.fate is None and min(ends, self.deadline) <= now:
            if self.deadline <= ends:
                self.abandon("deadline", self.deadline)
            elif self.left is not None:
                self.abandon("disconnect", self.left)

    def abandon(self, cause: str, at: float) -> None:
        if self.fate is None:
            self.fate = (at, Fate.SUNK, Fate.WASTED, cause, "abandoned")
            self.counted = self.caller

    def deliver(self, now: float, late_after: float = math.inf) -> None:
        if self.fate is None:
            outcome = "late" if now > late_after else "delivered"
            self.fate = (now, Fate.DELIVERED, Fate.AFTER, "none", outcome)
            self.counted = self.caller

    def leave(self, now: float) -> None:
        self.settle(now)
        if self.fate is None and self.left is None:
            self.left, self.caller = now, "gone"
            if self.meant == "abandon":
                self.abandon("disconnect", now)

    def come_back(self, now: float) -> bool:
        self.settle(now)
        if self.fate is None:
            self.left, self.caller = None, "connected"
        return self.fate is None

    def close(self, now: float, late_after: float) -> None:
        self.settle(now)
        if self.left is not None and self.meant == "grace":
            self.abandon("disconnect", self.left)
        self.deliver(now, late_after)


def call(tokens_in: int, tokens_out: int) -> tuple[str, int, int]:
    return ("call", tokens_in, tokens_out)


def wait(seconds: float) -> tuple[str, float]:
    return ("wait", seconds)


AMOUNTS = st.integers(1, 50)
MOVES = st.one_of(
    st.sampled_from(["leave", "leave", "back", "end"]),
    st.builds(call, AMOUNTS, AMOUNTS),
    st.sampled_from([0.5, 1.0, 3.0, 5.0, 8.0]).map(wait),
)


@st.composite
def histories(draw: st.DrawFn) -> list[Any]:
    """Moves, among them at most one that decides: most of the time none does."""
    moves: list[Any] = draw(st.lists(MOVES, min_size=4, max_size=20))
    decides = draw(st.sampled_from([None, None, "deliver", "kill"]))
    if decides is not None:
        moves.insert(draw(st.integers(0, len(moves))), decides)
    return moves


class World:
    """One run, driven move by move beside the naive one."""

    def __init__(self, telemetry: Telemetry, clock: FakeClock, run: Run) -> None:
        self.tracer = telemetry.tracer("test")
        self.clock = clock
        self.run = run
        self.open: list[tuple[Any, float, int, int]] = []
        self.ended: list[tuple[float, float, int, int]] = []

    def call(self, tokens_in: int, tokens_out: int, naive: Naive) -> None:
        naive.settle(self.clock.monotonic())
        due = self.run.deadline.at
        if self.run.mode is Mode.REFUSE and self.clock.monotonic() >= due:
            naive.abandon("deadline", due)  # by the call that is refused
        attributes = {
            "gen_ai.operation.name": "chat",
            "gen_ai.request.model": "gpt-4o",
        }
        with suppress(Stop, RunAbandoned):
            span = self.tracer.start_span("chat", attributes=attributes)
            booked = naive.fate is None or naive.fate[-1] == "abandoned"
            if not booked:  # delivered: the context is inert
                span.end()
                return
            self.open.append((span, self.clock.monotonic(), tokens_in, tokens_out))

    def end(self) -> None:
        if self.open:
            span, start, tokens_in, tokens_out = self.open.pop(0)
            span.set_attribute("gen_ai.usage.input_tokens", tokens_in)
            span.set_attribute("gen_ai.usage.output_tokens", tokens_out)
            span.end()
            self.ended.append((start, self.clock.monotonic(), tokens_in, tokens_out))

    def move(self, move: Any, naive: Naive) -> None:
        now = self.clock.monotonic()
        match move:
            case "leave":
                self.run.leave()
                naive.leave(now)
            case "back":
                assert self.run.reattach() == naive.come_back(now)
            case "deliver":
                naive.settle(now)
                assert self.run.deliver() == (naive.fate is None)
                naive.deliver(now, self.run.deadline.at)
            case "kill":
                self.run.cancel("killed")
                naive.settle(now)
                naive.abandon("killed", now)
            case "end":
                self.end()
            case ("call", tokens_in, tokens_out):
                self.call(tokens_in, tokens_out, naive)
            case ("wait", seconds):
                self.clock.advance(seconds)


GONE = [call(9, 9), wait(1), "leave", wait(3), "end", call(5, 50), wait(3), "end"]


@settings(max_examples=40, deadline=None)
@example([*GONE, wait(8)], "grace", None, "enforce")
@example([*GONE, "back", wait(8)], "grace", None, "enforce")
@example([*GONE, "deliver", wait(8)], "grace", None, "observe")
@example([*GONE, "kill", wait(8)], "grace", None, "observe")
@example([*GONE, wait(8), call(7, 7), wait(1)], "grace", None, "observe")
@example([*GONE, wait(8)], "grace", 9.0, "enforce")
@example([*GONE, wait(8)], "grace", 9.0, "observe")
@example([*GONE, wait(8)], "finish", None, "enforce")
@example(GONE, "grace", None, "refuse")
@given(
    histories(),
    st.sampled_from(["abandon", "grace", "grace", "finish"]),
    st.sampled_from([None, 12.0]),
    st.sampled_from(["observe", "refuse", "enforce"]),
)
def test_delivered_sunk_wasted_and_after_are_the_whole(
    moves: list[Any], meant: str, budget: float | None, mode: str
) -> None:
    clock = FakeClock()
    with instrumented() as telemetry:
        scope = opened(clock, budget, mode=mode, on_disconnect=meant, grace=GRACE)
        with suppress(RunAbandoned), scope as run:
            binding = budget is not None and mode == "enforce"
            naive = Naive(meant, run.deadline.at if binding else math.inf)
            world = World(telemetry, clock, run)
            for move in moves:
                world.move(move, naive)
        naive.close(clock.monotonic(), run.deadline.at)
        while world.open:
            clock.advance(0.5)
            world.end()
        assert naive.fate is not None
        at, before, after, cause, outcome = naive.fate
        assert (run.cause or "none") == cause
        expected = dict.fromkeys(Fate, (0, 0))
        for start, end, tokens_in, tokens_out in world.ended:
            usage = Usage(tokens_in, tokens_out)
            for part in split(start, None, end, usage, at, before, after):
                sums = expected[part.fate]
                expected[part.fate] = (sums[0] + part.input, sums[1] + part.output)
        assert {fate: telemetry.tokens(fate.value) for fate in Fate} == expected
        assert telemetry.total(names.TOKENS) == sum(
            tokens_in + tokens_out for _, _, tokens_in, tokens_out in world.ended
        )
        assert telemetry.total(names.CALLS) == len(world.ended)
        assert telemetry.total(names.RUNS) == 1
        labels = {"outcome": outcome, "cause": cause, "caller": naive.counted}
        assert telemetry.total(names.RUNS, **labels) == 1
    assert run.absence._timer is None


@pytest.mark.parametrize(("back", "fate"), [(False, "abandoned"), (True, "delivered")])
def test_the_calls_of_children_share_the_fate_of_the_run(
    back: bool,  # noqa: FBT001  parametrized
    fate: str,
) -> None:
    clock = FakeClock()
    with instrumented() as telemetry:
        tracer = telemetry.tracer()

        def spend(seconds: float, tokens: int) -> None:
            with suppress(Stop, RunAbandoned), chat(tracer) as span:
                clock.advance(seconds)
                used(span, tokens, 0)

        scope = opened(clock, mode="observe", on_disconnect="grace", grace=GRACE)
        with suppress(RunAbandoned), scope as run:
            with RunScope(name="ended before"):
                spend(1, 1)
            with RunScope(name="around the leave") as child:
                spend(1, 10)
                child.leave()
                spend(1, 100)
            with RunScope(name="around the end of the grace"):
                spend(1, 1_000)
                if back:
                    assert run.reattach()
                clock.advance(GRACE)
                spend(1, 10_000)
        assert run.state == fate
        if back:
            assert telemetry.tokens("delivered") == (11_111, 0)
        else:
            assert telemetry.tokens("sunk") == (11, 0)
            assert telemetry.tokens("wasted") == (11_100, 0)
        assert telemetry.total(names.TOKENS) == 11_111
        assert telemetry.total(names.CALLS) == 5
        assert telemetry.total(names.RUNS) == 1


def test_the_time_to_stop_begins_when_the_grace_ends() -> None:
    """T0 lies a grace before: waiting on purpose is not stopping slowly."""
    clock = FakeClock()
    with instrumented() as telemetry:
        with (
            pytest.raises(RunAbandoned),
            opened(clock, on_disconnect="grace", grace=GRACE) as run,
        ):
            with chat(telemetry.tracer()) as span:
                used(span, 1, 1)
            run.leave()
            clock.advance(GRACE)
            run.check()
        [point] = telemetry.points(names.STOP_DURATION)
    assert point.count == 1
    assert point.sum < 1.0
