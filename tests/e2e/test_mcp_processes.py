"""Parent, child and grandchild in three processes over MCP: one clock, stop and bill.

The parent asks the child over streamable HTTP, the child the grandchild over standard
input and output, and each of them the model meanwhile. Their wall clocks are two
minutes apart, in both directions. One family serves every scenario, all at once; the
model's log is the truth.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING

import pytest
from support.mcp_kin import BUDGET, ROLES
from support.rig import IN_TIME, Caller
from support.serving import serving

from hangup.demo.brain import Script
from hangup.demo.model_server import ModelServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from support.books import Books
    from support.serving import Serving

    from hangup.demo.journal import CallRecord

pytestmark = [pytest.mark.timeout(110), pytest.mark.wide]

LONG = Script(tokens=400, input_tokens=20, rate=5, jitter=0.0, chunk_most=1)
SHORT = Script(tokens=20, input_tokens=20, rate=5, jitter=0.0, chunk_most=1)
"""An answer that takes four seconds."""
BRIEF = Script(tokens=2, input_tokens=20, rate=50)
PRECISION = 0.3
WALKS = ("walk", "walk-legacy", "child-observes", "parent-observes")
DEADLINES = ("deadline", "deadline-legacy", "late-child")


class Family:
    """The three processes and the model they ask."""

    def __init__(self, model: ModelServer, parent: Serving, books: list[Books]) -> None:
        self.model = model
        self.parent = parent
        self.books = books

    def calls(self, scenario: str) -> dict[str, CallRecord]:
        """The model calls of a scenario, by whose they are."""
        return {
            role: call
            for call in self.model.log.calls
            for role in ROLES
            if call.model == f"{scenario}-{role}"
        }

    async def begin(self, scenario: str) -> Caller:
        """Ask the parent, and wait until each of the three hears the model."""
        caller = await Caller.asks(self.parent, f"/{scenario}")

        def all_speak() -> bool:
            calls = self.calls(scenario).values()
            return len(calls) == len(ROLES) and all(call.chunks for call in calls)

        await self.model.log.wait_for(all_speak, within=30)
        return caller

    async def over(self, scenario: str) -> dict[str, float]:
        """Wait until every call of a scenario is over; return when, by whose."""

        def closed() -> dict[str, float]:
            calls = self.calls(scenario).items()
            return {role: call.closed for role, call in calls if call.closed}

        await self.model.log.wait_for(lambda: len(closed()) == len(ROLES), within=30)
        return closed()

    def runs(self, name: str) -> dict[tuple[str, str], int]:
        """What runs of this name the three have counted."""
        found: dict[tuple[str, str], int] = {}
        for books in self.books:
            for key, count in books.runs(name=name).items():
                found[key] = found.get(key, 0) + count
        return found

    def wasted(self, scenario: str) -> dict[str, float]:
        """Output tokens that were booked as wasted, by whose they are."""
        return {
            role: sum(
                books.total(
                    "hangup.tokens",
                    fate="wasted",
                    type="output",
                    model=f"{scenario}-{role}",
                )
                for books in self.books
            )
            for role in ROLES
        }

    async def billed(self, scenario: str, since: float) -> None:
        """Assert that what was generated since then was booked as wasted, once."""
        truth = {
            role: sum(tokens for at, tokens in call.chunks if at > since)
            for role, call in self.calls(scenario).items()
        }
        await until(
            lambda: all(
                abs(self.wasted(scenario)[role] - truth[role]) <= 2 for role in ROLES
            )
        )
        wasted = self.wasted(scenario)
        for role in ROLES:
            assert wasted[role] == pytest.approx(truth[role], abs=2), (scenario, truth)

    async def counted_once(self, scenario: str, kind: tuple[str, str]) -> None:
        """Assert that it was one run, of this outcome and cause, in one process."""
        await until(lambda: self.runs(scenario) != {})
        assert self.runs(scenario) == {kind: 1}

    async def answered(self, scenario: str) -> None:
        """The client waits, and gets its answer."""
        caller = await Caller.asks(self.parent, f"/{scenario}")
        assert (await caller.answer())[0] == 200

    async def walk_away(self, scenario: str) -> float:
        """The client leaves: all three stop. Returns when it left."""
        caller = await self.begin(scenario)
        left = caller.leaves()
        closed = await self.over(scenario)
        late = {role: at - left for role, at in closed.items()}
        assert max(late.values()) <= IN_TIME, (scenario, late)
        return left

    async def deadline(self, scenario: str, after: float) -> None:
        """Nobody leaves, and the time is up: for all three at once.

        One scenario after the other, that none measures how busy the others keep the
        machine.
        """
        await asyncio.sleep(after)
        asked = time.monotonic()
        caller = await self.begin(scenario)
        closed = await self.over(scenario)
        took = {role: at - asked for role, at in closed.items()}
        # Where the child only looks on, the parent's stop is what stops it.
        late = IN_TIME if scenario == "late-child" else PRECISION
        assert took["parent"] == pytest.approx(BUDGET, abs=PRECISION), (scenario, took)
        for role in ROLES:
            assert BUDGET - PRECISION < took[role] < BUDGET + late, (scenario, took)
        status, headers, _ = await caller.answer()
        assert (status, headers["hangup-cause"]) == (504, "deadline")

    async def parent_dies(self, scenario: str) -> None:
        """Case f6: nobody says a word, and the connections break."""
        caller = await self.begin(scenario)
        self.parent.process.kill()
        killed = time.monotonic()
        closed = await self.over(scenario)
        assert max(closed.values()) - killed <= 2 * IN_TIME, scenario
        caller.leaves()

    async def goes_on(self, scenario: str) -> float:
        """The client leaves a parent that only looks on: it is a bill, and no stop."""
        caller = await self.begin(scenario)
        left = caller.leaves()
        await self.over(scenario)
        for call in self.calls(scenario).values():
            assert not call.cut
            assert call.output_tokens == SHORT.tokens
        return left


async def until(holds: Callable[[], bool]) -> None:
    """Wait until files of other processes say so, or for long enough."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(10):
            while not holds():  # noqa: ASYNC110  files tell nobody
                await asyncio.sleep(0.2)


@contextlib.asynccontextmanager
async def family(directory: Path) -> AsyncIterator[Family]:
    """Three processes and a model, until the block is left."""
    for name in ("parent", "child"):
        (directory / name).mkdir()
    async with ModelServer(default=LONG) as model:
        for role in ROLES:
            model.script(f"parent-observes-{role}", SHORT)
            model.script(f"warm-{role}", BRIEF)
            model.script(f"warm-legacy-{role}", BRIEF)
        async with (
            serving(
                "uvicorn",
                directory / "child",
                model.base_url,
                target="support.mcp_child:app",
            ) as child,
            serving(
                "uvicorn",
                directory / "parent",
                model.base_url,
                target="support.mcp_parent:app",
                environment={"CHILD": f"{child.url}/mcp"},
            ) as parent,
        ):
            yield Family(model, parent, [child.books, parent.books])


def test_three_processes_over_mcp_have_one_deadline_one_stop_and_one_bill(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with family(tmp_path) as kin:
            # What is done for the first time takes its time, and the others have none.
            await asyncio.gather(kin.answered("warm"), kin.answered("warm-legacy"))
            # First all that is about time: to read the books takes some.
            observed, _ = await asyncio.gather(
                kin.goes_on("parent-observes"),
                asyncio.gather(*map(kin.deadline, DEADLINES, (0.0, 0.6, 1.2))),
            )
            left = {"parent-observes": observed}
            for scenario in ("walk", "walk-legacy", "child-observes"):
                left[scenario] = await kin.walk_away(scenario)
            for scenario in WALKS:
                await kin.billed(scenario, left[scenario])
                await kin.counted_once(scenario, ("abandoned", "disconnect"))
            for scenario in DEADLINES:
                await kin.counted_once(scenario, ("abandoned", "deadline"))
            for scenario in ("warm", "warm-legacy"):
                await kin.counted_once(scenario, ("delivered", "none"))
                assert kin.wasted(scenario) == dict.fromkeys(ROLES, 0)
            for tool in ("research", "watched_research", "dig"):
                assert kin.runs(tool) == {}
            calls = sum(books.total("hangup.calls", kind="tool") for books in kin.books)
            assert calls == 2 * (2 + len(WALKS) + len(DEADLINES))
            await kin.parent_dies("orphans")

    asyncio.run(main())
