"""Where the present code stands: born with it, or put there on purpose."""

from __future__ import annotations

import asyncio
import contextvars
from typing import TYPE_CHECKING

import pytest
from support.core import in_loop, opened

import hangup
from hangup.core import current
from hangup.core.current import Position, current_run, enter, position
from hangup.core.scope import RunScope
from hangup.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Bridge:
    """A second context that can be told what to say."""

    def __init__(self) -> None:
        self.says: Position | None = None
        self.attached: list[Position] = []
        self.detached: list[Position] = []

    def read(self) -> Position | None:
        return self.says

    def attach(self, position: Position) -> Callable[[], None]:
        self.attached.append(position)
        return lambda: self.detached.append(position)


@pytest.fixture
def bridge() -> Iterator[Bridge]:
    one = Bridge()
    current.set_bridge(one)
    yield one
    current.set_bridge(None)


def test_outside_any_run_there_is_no_position() -> None:
    assert position() is None
    assert current_run() is None


@in_loop
async def test_a_task_stands_where_it_was_born() -> None:
    async def where() -> object:
        await asyncio.sleep(0)
        return current_run()

    async with hangup.run() as run:
        task = asyncio.create_task(where())
        async with hangup.run():
            assert await task is run


def test_the_other_context_wins_where_it_says_something(bridge: Bridge) -> None:
    served = opened(RunScope())
    with hangup.run() as born:
        assert current_run() is born
        bridge.says = Position(served)
        assert current_run() is served
        bridge.says = Position(None)
        assert current_run() is None
        bridge.says = None
        assert current_run() is born


def test_the_other_context_is_entered_and_left_too(bridge: Bridge) -> None:
    with hangup.run() as run:
        assert [one.run for one in bridge.attached] == [run]
        assert bridge.detached == []
    assert bridge.detached == bridge.attached


def test_leaving_somewhere_else_changes_nothing_there() -> None:
    leave = enter(Position(opened(RunScope(name="mine"))))
    elsewhere = contextvars.Context()
    other = elsewhere.run(RunScope(name="other").__enter__)
    elsewhere.run(leave)
    assert elsewhere.run(current_run) is other
    leave()
    assert current_run() is None


def test_leaving_out_of_order_does_not_bring_back_what_is_over() -> None:
    first = enter(Position(opened(RunScope())))
    second = enter(Position(inner := opened(RunScope())))
    first()
    assert current_run() is inner
    second()
    first()
    assert current_run() is None


def test_a_run_that_is_over_is_no_current_run() -> None:
    clock = FakeClock()
    with hangup.run(clock=clock) as run:
        run.deliver()
        assert current_run() is None
        here = position()
        assert here is not None
        assert here.run is run
