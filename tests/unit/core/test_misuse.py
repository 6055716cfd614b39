"""What cannot work says so where it is written, and what to write instead."""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING, Any, cast

import pytest
from support.core import in_loop

import hangup
from hangup.errors import ArgumentError, ConfigError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class Started:
    """Says whether anything of it ran."""

    def __init__(self) -> None:
        self.count = 0

    async def charge(self) -> None:
        self.count += 1

    async def stream(self) -> AsyncIterator[int]:
        self.count += 1
        yield 1


def test_a_decorator_without_its_parentheses() -> None:
    def research() -> None: ...

    with pytest.raises(ArgumentError) as error:
        hangup.run(cast("Any", research))
    said = str(error.value)
    assert said.startswith("hangup.run got the function ")
    assert said.endswith(
        "research: write @hangup.run() with the parentheses, or @hangup.run(budget=30)"
    )
    with pytest.raises(ConfigError):
        hangup.run(cast("Any", "research"))


@in_loop
async def test_an_irreversible_step_that_is_under_way_already() -> None:
    step = Started()
    with pytest.raises(ArgumentError) as error:
        await hangup.irreversible(cast("Any", step.charge()))
    assert str(error.value) == (
        "hangup.irreversible got the coroutine Started.charge(): give it the function, "
        "hangup.irreversible(Started.charge, ...)"
    )
    task = asyncio.ensure_future(step.charge())
    with pytest.raises(ArgumentError, match="give it a function, and that function's"):
        await hangup.irreversible(cast("Any", task))
    await task
    assert step.count == 1


@in_loop
async def test_a_thread_for_what_does_not_block() -> None:
    work = Started()
    for function in (work.charge, functools.partial(work.charge), work.stream):
        with pytest.raises(ArgumentError) as error:
            await hangup.to_thread(function)
        said = str(error.value)
        assert said.startswith("hangup.to_thread got the async function ")
        assert "await it where you are" in said
    with pytest.raises(
        ArgumentError, match=r"the coroutine Started\.charge\(\): await"
    ):
        await hangup.to_thread(cast("Any", work.charge()))
    assert work.count == 0


def test_whoever_expects_the_error_of_python_gets_it() -> None:
    for kind in (TypeError, hangup.MisuseError, RuntimeError):
        with pytest.raises(kind):
            hangup.run(cast("Any", print))
