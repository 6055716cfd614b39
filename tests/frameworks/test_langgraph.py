"""LangGraph: subgraphs, parallel nodes, and threads that are usable after a stop."""

from __future__ import annotations

import asyncio
import json
import time
from typing import TYPE_CHECKING

import pytest
from support.frameworks import (
    IN_TIME,
    WATCH,
    Served,
    all_return,
    all_stop,
    all_walk_away,
    kill_in_tools_and_return,
    served,
    slow_inside,
    threads,
)
from support.providers.script import Script
from support.providers.tireless import Tireless

from hangup.clients.langgraph import ANSWER

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def serving() -> Iterator[Served]:
    with served("langgraph_agent") as app:
        yield app


@pytest.fixture
def app(serving: Served) -> Served:
    serving.plan = Tireless()
    return serving


@pytest.fixture
def cases() -> Iterator[Served]:
    with Served("support.langgraph_cases") as app:
        yield app


@pytest.mark.wide
def test_twenty_walk_away_and_come_back(app: Served) -> None:
    async def scenario() -> None:
        names = threads(20)
        await all_stop(app, names)
        await all_return(app, names)

    asyncio.run(scenario())


@pytest.mark.parametrize("at_once", [1, 3])
def test_b11_kill_in_tools_leaves_the_thread_usable(app: Served, at_once: int) -> None:
    """And what was stopped is answered for, in the history that the model sees."""
    app.plan = slow_inside(Tireless(tools=("delegate",), at_once=at_once))
    names = threads(20 if at_once == 1 else 5, first=100 * at_once)
    asyncio.run(kill_in_tools_and_return(app, names, at_once))
    for name in names:
        last = json.dumps(app.requests(name)[-1].asked)
        assert last.count(ANSWER) == at_once


def test_b10_subgraphs_in_parallel_nodes_end_with_the_graph(app: Served) -> None:
    """Callers leave a stream of events; each graph has two subgraphs at work."""
    app.plan = Tireless(Script(tokens=5, input=20, rate=50), tools=("look_up",))

    async def scenario() -> None:
        names = threads(5, first=400)
        before = await app.books()
        left = await all_walk_away(app, names, "/report/{thread}", 1.8, 2.2)
        await asyncio.sleep(max(left.values()) + IN_TIME + WATCH - time.monotonic())
        assert app.late(left) == {}
        counted = await app.counted(before)
        assert counted["abandoned disconnect"] == len(names)
        assert counted.get("wasted output", 0) <= 10 * len(names)
        for name, moment in left.items():
            assert len(app.requests(name)) >= 4
            assert app.tokens_after(name, moment) <= 10

    asyncio.run(scenario())


@pytest.mark.parametrize("path", ["/tools/{thread}", "/nodes/{thread}"])
def test_b5_one_fails_and_its_siblings_are_stopped(cases: Served, path: str) -> None:
    """Two others stream a model for 30 s; what they had after the 500 is waste."""
    app = cases
    app.plan = Tireless(
        Script(tokens=600, input=20, rate=20),
        tools=("broken", "first", "second"),
        at_once=3,
        asking=Script(tokens=5, input=20),
    )

    async def scenario() -> None:
        before = await app.books()
        answer = await app.ask("thread-1", "go on with thread-1", path)
        failed = time.monotonic()
        assert answer.status == 500
        counted = await app.counted(before, abandoned_failed=1)
        await asyncio.to_thread(app.provider.log.settled)
        streams = [one for one in app.requests("thread-1") if one.cut]
        assert len(streams) == 2
        assert all(one.closed and one.closed - failed <= IN_TIME for one in streams)
        counted = await app.counted(before)
        assert counted["abandoned failed"] == 1
        after = app.tokens_after("thread-1", failed)
        assert abs(counted.get("wasted output", 0) - after) <= 3

    asyncio.run(scenario())
