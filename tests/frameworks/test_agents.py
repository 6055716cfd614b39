"""OpenAI Agents SDK, pydantic-ai, the Anthropic SDK's tool loop, and smolagents.

Each is the example that a user copies, with its real packages, in a process of its
own. Where nothing has to be timed apart, all four are asked at once.
"""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from support.framework_cases import BLOCKS, ENDLESS
from support.frameworks import (
    IN_TIME,
    Served,
    all_return,
    all_stop,
    all_walk_away,
    threads,
)
from support.providers.script import Script
from support.providers.tireless import Tireless

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping

    from support.providers.log import Request

    Apps = Mapping[str, Served]

ASYNC = ("openai_agents_agent", "pydantic_ai_agent", "anthropic_loop")
THREADED = "smolagents_agent"
EXAMPLES = (*ASYNC, THREADED)
STREAMED = ("openai_agents_agent", "pydantic_ai_agent")
APART = 3.5
"""Seconds between the first callers of one example and of the next."""
BUDGET = 2.0
CHUNK = 4
"""Tokens that may be on their way when a stream is cut, or a moment is noted."""

pytestmark = pytest.mark.timeout(300)


@dataclass
class Plan(Tireless):
    """Ask for tools side by side; the tools' own model goes on and on."""

    def __call__(self, asked: Mapping[str, Any]) -> Script:
        if asked["model"] == ENDLESS:
            return Script(tokens=2_000, input=20, rate=40, first=0.05)
        tools = len(asked.get("tools") or ())
        self.at_once = max(1, min(3, tools))
        return super().__call__(asked)


class Blocking(Served):
    """An example whose model calls block: what is under way goes on to its end."""

    def late(self, left: Mapping[str, float]) -> dict[str, list[float]]:
        found = {
            name: [one.opened - moment for one in self.requests(name)]
            for name, moment in left.items()
        }
        return {
            name: late
            for name, after in found.items()
            if (late := [round(seconds, 2) for seconds in after if seconds > IN_TIME])
        }


@pytest.fixture(scope="module")
def apps() -> Iterator[Apps]:
    """All examples, each of which has served once: that is when much is imported."""
    found: dict[str, Served] = {}
    for name in EXAMPLES:
        kind = Blocking if name == THREADED else Served
        found[name] = kind("support.framework_cases", Plan(), {"EXAMPLE": name})
    with ExitStack() as stack, ThreadPoolExecutor(2) as pool:
        list(pool.map(stack.enter_context, found.values()))
        asyncio.run(at_once(found, lambda app: all_return(app, ["thread-0"])))
        yield found
        for app in found.values():
            app.quiet()


async def at_once(
    apps: Apps, what: Callable[[Served], Awaitable[object]], apart: float = 0.0
) -> dict[str, BaseException]:
    """Do something with every example; return what failed, by example."""

    async def one(place: int, app: Served) -> None:
        await asyncio.sleep(place * apart)
        await what(app)

    outcomes = await asyncio.gather(
        *(one(place, app) for place, app in enumerate(apps.values())),
        return_exceptions=True,
    )
    return {
        name: outcome
        for name, outcome in zip(apps, outcomes, strict=True)
        if isinstance(outcome, BaseException)
    }


def some(apps: Apps, names: tuple[str, ...]) -> Apps:
    return {name: apps[name] for name in names}


# b11, and what goes before it


@pytest.mark.wide
def test_b11_all_walk_away_all_stop_and_all_can_go_on(apps: Apps) -> None:
    """20 walk away from each at different points: none goes on, and all can return.

    No model request is later than a second after its caller left, over ten seconds;
    every run is counted once; then each says hello on the old thread and is answered.
    Those that run in a task of their own when they stream also do that.
    """
    streamed = [apps[name] for name in STREAMED]

    async def leave_and_return(app: Served) -> None:
        await all_stop(app, threads(20, first=1))
        await all_return(app, threads(20, first=1))
        if app in streamed:
            await all_stop(app, threads(20, first=31), "/stream/{thread}")
            await all_return(app, threads(20, first=31))

    assert asyncio.run(at_once(apps, leave_and_return, APART)) == {}
    assert [asyncio.run(app.books())["unsettled"] for app in apps.values()] == [0] * 4


@pytest.mark.parametrize("example", EXAMPLES)
def test_b11_killed_while_a_tool_runs_the_thread_can_go_on(
    apps: Apps, example: str
) -> None:
    """20 are killed between a tool call and its answer: no thread breaks."""
    app, names = apps[example], threads(20, first=101)

    def most_in_tools() -> bool:
        asked = [app.requests(name) for name in names]
        answered = [all(one.closed is not None for one in own) for own in asked]
        return all(asked) and sum(answered) > len(names) // 2

    async def check() -> None:
        before = await app.books()
        callers = [await app.caller(name, f"go on with {name}") for name in names]
        async with asyncio.timeout(20):
            while not most_in_tools():  # noqa: ASYNC110  the log has no event
                await asyncio.sleep(0.01)
        assert await app.kill() == len(names)
        answers = await asyncio.gather(*(caller.answer() for caller in callers))
        assert [answer.status for answer in answers] == [409] * len(names)
        counted = await app.counted(before, abandoned_killed=len(names))
        assert counted["abandoned killed"] == len(names)
        await all_return(app, names)

    usual = app.plan
    # The model takes no time, so that nearly all of a run is in its tools.
    app.plan = Plan(script=Script(tokens=2, input=20))
    asyncio.run(check())
    app.plan = usual


# a6


def test_a6_tools_in_threads_stop_at_the_next_chunk_or_call(apps: Apps) -> None:
    """Of blocking tools one streams a model and one is about to ask: neither goes on.

    The stream is closed in time, the other is refused; both callers have left.
    """

    async def check(app: Served) -> None:
        names = threads(2, first=301)
        before = await app.books()
        callers = [
            await app.caller(name, f"go on with {name}", f"/stubborn/{{thread}}/{tool}")
            for name, tool in zip(names, ("asks", "blocks"), strict=True)
        ]
        async with asyncio.timeout(20):
            while not (streams(app, names[0]) and app.requests(names[1])):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        left = {
            name: caller.leaves() for name, caller in zip(names, callers, strict=True)
        }
        await asyncio.sleep(BLOCKS + IN_TIME)
        assert app.late(left) == {}
        assert Served.late(app, {names[0]: left[names[0]]}) == {}
        await asyncio.to_thread(app.provider.log.settled)
        counted = await app.counted(before, abandoned_disconnect=2)
        assert counted["abandoned disconnect"] == 2

    assert asyncio.run(at_once(apps, check)) == {}


def test_a6_a_call_that_blocks_is_counted_as_what_it_went_on_to_spend(
    apps: Apps,
) -> None:
    """Of calls that cannot be cut, the log tells what they spent after T0; so do we."""
    app, names = apps[THREADED], threads(10, first=501)

    async def check() -> None:
        before = await app.books()
        left = await all_walk_away(app, names)
        await asyncio.to_thread(app.provider.log.settled)
        counted = await app.counted(before, abandoned_disconnect=len(names))
        late = {name: app.tokens_after(name, moment) for name, moment in left.items()}
        cut = sum(tokens > 0 for tokens in late.values())
        assert cut > len(names) // 2
        assert counted["wasted output"] == pytest.approx(
            sum(late.values()), abs=2 * cut
        )

    usual = app.plan
    # One token is a tenth of a second: what is noticed that much later is within one.
    app.plan = Plan(script=Script(tokens=15, input=20, rate=10))
    asyncio.run(check())
    app.plan = usual


def streams(app: Served, name: str) -> list[Request]:
    """The streams to the tools of a conversation, those that have begun."""
    return [one for one in app.requests(name) if one.model == ENDLESS and one.marks]


# b5


def test_b5_gather_leaves_siblings(apps: Apps) -> None:
    """A tool fails the run: the model connections of its siblings close with it.

    What they were sent after that is what is counted as wasted.
    """

    async def check(app: Served) -> None:
        [name] = threads(1, first=201)
        before = await app.books()
        answer = await app.ask(name, f"go on with {name}", "/parallel/{thread}")
        answered = time.monotonic()
        assert answer.status == 500
        counted = await app.counted(before, abandoned_failed=1)
        assert counted["abandoned failed"] == 1
        siblings = streams(app, name)
        assert len(siblings) == 2
        await asyncio.to_thread(app.provider.log.settled)
        assert all(one.cut for one in siblings)
        assert max(one.closed or 0 for one in siblings) <= answered + IN_TIME
        failed = (await ended(app))[name]
        late = app.tokens_after(name, failed)
        assert counted.get("wasted output", 0) == pytest.approx(late, abs=2 * CHUNK)

    assert asyncio.run(at_once(some(apps, ASYNC), check)) == {}


# e8

IN_THE_WAY = {
    **dict.fromkeys(ASYNC, ("waits", "hides", "blocks", "asks")),
    THREADED: ("blocks", "asks"),
}
"""What the deadline finds: a tool asleep, one in a model call whose errors it hides,
one that blocks a thread, and one that streams there."""


def test_e8_deadline_fed_back_to_the_model(apps: Apps) -> None:
    """The deadline is no tool error and no provider error: nobody is asked again.

    Not by the framework, not by the tool, not by a handler that tries again whatever
    went wrong. The run ends in time, and is counted once.
    """

    async def asked(app: Served, name: str, tool: str) -> float:
        path = f"/stubborn/{{thread}}/{tool}"
        answer = await app.ask(name, f"go on with {name}", path, BUDGET)
        assert answer.status == 504
        return time.monotonic()

    async def check(app: Served, tools: tuple[str, ...]) -> None:
        names = threads(len(tools), first=401)
        before, began = await app.books(), time.monotonic()
        asking = (asked(app, *pair) for pair in zip(names, tools, strict=True))
        answered = dict(zip(names, await asyncio.gather(*asking), strict=True))
        await asyncio.sleep(BLOCKS + IN_TIME)
        assert max(answered.values()) <= began + BUDGET + 2 * IN_TIME
        for name, tool in zip(names, tools, strict=True):
            requests = app.requests(name)
            assert requests, tool
            assert [one for one in requests if one.opened > answered[name]] == [], tool
        assert app.late(answered) == {}
        endings = await ended(app)
        overrun = {name: endings[name] - answered[name] for name in names}
        assert max(overrun.values()) <= IN_TIME
        counted = await app.counted(before, abandoned_deadline=len(names))
        assert counted["abandoned deadline"] == len(names)

    tools = {id(app): IN_THE_WAY[name] for name, app in apps.items()}
    assert asyncio.run(at_once(apps, lambda app: check(app, tools[id(app)]))) == {}


async def ended(app: Served) -> dict[str, float]:
    """When the handler of each conversation ended, by ``time.monotonic``."""
    found: dict[str, float] = await app._control("GET", "/ended")
    return found
