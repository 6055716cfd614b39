"""LangGraph: subgraphs, parallel nodes, and threads that are usable after a stop."""

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
    all_walk_away,
    kill_in_tools_and_return,
    runs,
    served,
    slow_inside,
    threads,
    watched,
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


@pytest.fixture(scope="module")
def cases() -> Iterator[Served]:
    with Served("support.langgraph_cases") as app:
        yield app


def test_b10_twenty_walk_away_and_come_back_and_subgraphs_end(app: Served) -> None:
    """Twenty leave a chat, five a stream of events with two subgraphs at work."""
    report = "/report/{thread}"

    async def scenario() -> None:
        chats, streams = threads(20), threads(5, first=50)
        before = await app.books()
        chats_left, streams_left = await asyncio.gather(
            all_walk_away(app, chats), all_walk_away(app, streams, report, 1.8, 2.2)
        )
        await watched(app, chats_left | streams_left)
        counted = await app.counted(before)
        assert runs(counted) == {"abandoned disconnect": 25}
        assert counted.get("unsettled", 0) == 0
        assert counted.get(f"wasted output {report}", 0) <= 10 * len(streams)
        for name, moment in streams_left.items():
            assert len(app.requests(name)) >= 2  # of either subgraph
            assert app.tokens_after(name, moment) <= 10
        await all_return(app, chats)

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

    name = "thread-1" if "tools" in path else "thread-2"

    async def scenario() -> None:
        before = await app.books()
        answer = await app.ask(name, f"{GO_ON} {name}", path)
        failed = time.monotonic()
        assert answer.status == 500
        counted = await app.counted(before, abandoned_failed=1)
        await asyncio.to_thread(app.provider.log.settled)
        streams = [one for one in app.requests(name) if one.cut]
        assert len(streams) == 2
        assert all(one.closed and one.closed - failed <= IN_TIME for one in streams)
        counted = await app.counted(before)
        assert counted["abandoned failed"] == 1
        # The run knew of it somewhat before its caller did.
        after = app.tokens_after(name, failed)
        generated = sum(one.output for one in streams)
        assert after - 3 <= counted.get("wasted output", 0) <= generated

    asyncio.run(scenario())
