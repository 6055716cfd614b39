"""LangChain: tools in threads, and handlers that make messages of failures."""

from __future__ import annotations

import asyncio
import json
import time
from typing import TYPE_CHECKING

import pytest
from support.frameworks import (
    GO_ON,
    IN_TIME,
    Served,
    all_return,
    all_stop,
    kill_in_tools_and_return,
    served,
    slow_inside,
    threads,
)
from support.providers.tireless import Tireless, conversation

from hangup.clients.langgraph import ANSWER

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def serving() -> Iterator[Served]:
    with served("langchain_agent") as app:
        yield app


@pytest.fixture
def app(serving: Served) -> Served:
    serving.plan = Tireless()
    return serving


@pytest.mark.wide
def test_twenty_walk_away_and_come_back(app: Served) -> None:
    async def scenario() -> None:
        names = threads(20)
        await all_stop(app, names)
        await all_return(app, names)

    asyncio.run(scenario())


def test_a6_tool_in_a_thread_makes_no_further_call(app: Served) -> None:
    """Of its five, the one it is in may end; what that spends is in the books."""
    app.plan = Tireless(tools=("survey",))

    async def scenario() -> None:
        names = threads(6, first=100)
        before = await app.books()
        callers = [await app.caller(name, f"{GO_ON} {name}") for name in names]
        asking = app.provider.log.wait
        await asyncio.to_thread(asking, lambda: all(map(app.in_tools, names)))
        left = {
            name: caller.leaves() for name, caller in zip(names, callers, strict=True)
        }
        await asyncio.sleep(IN_TIME + 2)
        assert app.late(left) == {}
        assert all(len(app.requests(name)) < 1 + 5 for name in names)
        counted = await app.counted(before, abandoned_disconnect=len(names))
        assert counted["abandoned disconnect"] == len(names)
        after = sum(app.tokens_after(name, moment) for name, moment in left.items())
        # The server hears of it somewhat later: 20 tokens a second each.
        assert abs(counted.get("wasted output", 0) - after) <= 6 * len(names)

    asyncio.run(scenario())


@pytest.mark.parametrize("at_once", [1, 3])
def test_b11_kill_in_tools_leaves_the_thread_usable(app: Served, at_once: int) -> None:
    """And what was stopped is answered for, in the history that the model sees."""
    app.plan = slow_inside(Tireless(tools=("delegate",), at_once=at_once))
    names = threads(20 if at_once == 1 else 5, first=200 + at_once * 20)
    asyncio.run(kill_in_tools_and_return(app, names, at_once))
    for name in names:
        last = json.dumps(app.requests(name)[-1].asked)
        assert last.count(ANSWER) == at_once


def test_e8_deadline_is_no_failure_to_tell_the_model_of(app: Served) -> None:
    """Whatever it hits: a tool, a tool in a thread, an agent in a tool, all retried."""
    tools = {"thread-400": "look_up", "thread-401": "survey", "thread-402": "delegate"}
    plans = {name: Tireless(tools=(tool,)) for name, tool in tools.items()}
    app.plan = lambda asked: plans[conversation(asked)](asked)

    async def expires(name: str) -> None:
        asked = time.monotonic()
        answer = await app.ask(name, f"{GO_ON} {name}", budget=1.5)
        answered = time.monotonic()
        assert answer.status == 504
        assert answer.headers["hangup-cause"] == "deadline"
        assert answered - asked < 1.5 + IN_TIME
        await asyncio.sleep(2)
        opened = [request.opened for request in app.requests(name)]
        assert opened
        assert max(opened) < answered + 0.1

    async def scenario() -> None:
        before = await app.books()
        await asyncio.gather(*(expires(name) for name in tools))
        counted = await app.counted(before)
        assert counted["abandoned deadline"] == len(tools)
        await all_return(app, list(tools))

    asyncio.run(scenario())
