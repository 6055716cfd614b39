"""A scope that is used in a way that cannot work names the run and the remedy."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from support.core import in_loop

import hangup
from hangup.core.current import POSITION
from hangup.errors import MisuseError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator


def test_entered_twice() -> None:
    scope = hangup.run(name="twice")
    with (
        scope,
        pytest.raises(MisuseError, match=r"<Run 'twice' .* was entered twice; call"),
        scope,
    ):
        pass
    assert hangup.current_run() is None


@in_loop
async def test_entered_twice_asynchronously() -> None:
    scope = hangup.run(name="twice")
    async with scope:
        pass
    with pytest.raises(MisuseError, match="again for each run"):
        await scope.__aenter__()
    assert hangup.current_run() is None


def test_left_without_being_entered() -> None:
    with pytest.raises(MisuseError, match="left that had not been entered; use it as"):
        hangup.run().__exit__(None, None, None)


def test_entered_asynchronously_without_a_loop() -> None:
    entering = hangup.run().__aenter__()
    with pytest.raises(MisuseError, match="needs a running asyncio task"):
        entering.send(None)
    assert hangup.current_run() is None


@in_loop
async def test_left_in_another_task() -> None:
    scope = hangup.run(name="wanderer")
    run = await scope.__aenter__()
    with pytest.raises(MisuseError) as error:
        await asyncio.create_task(scope.__aexit__(None, None, None), name="other")
    said = str(error.value)
    assert said.startswith("<Run 'wanderer'")
    assert "name='other'" in said
    assert "enter and leave a scope in the same task" in said
    assert "open the run around the loop" in said
    assert run.closed_at is not None
    assert hangup.current_run() is None


@in_loop
async def test_left_in_another_task_with_an_error_that_is_not_lost() -> None:
    scope = hangup.run()
    await scope.__aenter__()
    mine = KeyError("mine")
    with pytest.raises(MisuseError) as error:
        await asyncio.create_task(scope.__aexit__(KeyError, mine, None))
    assert error.value.__cause__ is mine


def test_left_while_a_run_opened_inside_it_is_open() -> None:
    outer, inner = hangup.run(name="outer"), hangup.run(name="inner")
    outer.__enter__()
    inner.__enter__()
    with pytest.raises(MisuseError) as error:
        outer.__exit__(None, None, None)
    said = str(error.value)
    assert said.startswith("<Run 'outer'")
    assert "<Run 'inner'" in said
    assert "leave the inner scope first: nest the 'with' blocks" in said
    inner.__exit__(None, None, None)
    assert hangup.current_run() is None
    POSITION.set(None)


@in_loop
async def test_one_misuse_is_told_once() -> None:
    """An inner scope that was left elsewhere is not held against the outer one."""
    async with hangup.run() as outer:
        inner = hangup.run()
        await inner.__aenter__()
        with pytest.raises(MisuseError):
            await asyncio.create_task(inner.__aexit__(None, None, None))
    assert outer.state == "delivered"


def test_a_misused_scope_cancels_nothing_and_owes_nothing() -> None:
    @in_loop
    async def scenario() -> None:
        scope = hangup.run()
        run = await scope.__aenter__()
        other = asyncio.create_task(scope.__aexit__(None, None, None))
        run.cancel("killed")
        with pytest.raises(MisuseError):
            await other

    scenario()


def test_a_generator_cannot_be_decorated() -> None:
    def numbers() -> Iterator[int]:
        yield 1

    async def words() -> AsyncIterator[str]:
        yield "a"

    for generator in (numbers, words):
        with pytest.raises(MisuseError) as error:
            hangup.run()(generator)
        said = str(error.value)
        assert generator.__qualname__ in said
        assert "Open the run with 'async with hangup.run(...)' around the loop" in said
