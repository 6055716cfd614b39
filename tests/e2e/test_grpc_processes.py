"""Parent, child and grandchild in three processes over gRPC, under skewed clocks.

Cases e1 and f6 over gRPC; the model's log is the truth.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import grpc  # type: ignore[import-untyped]
import pytest
from support.books import DIRECTORY, Books
from support.requires import wide
from support.rig import SHORT
from support.rpc import on, status
from support.serving import TESTS

from hangup.demo.brain import Script
from hangup.demo.model_server import ModelServer

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator
    from pathlib import Path

    from hangup.demo.journal import CallRecord

pytestmark = [pytest.mark.timeout(200), pytest.mark.wide]

BUDGET = 2.5
RATE = 20
LONG = Script(tokens=400, rate=RATE, first_token=0.05, jitter=0.0, chunk_most=1)
FINITE = dataclasses.replace(LONG, tokens=80)
"""An answer that takes 4 s, beyond the budget."""
NODES = {"parent": 0, "child": 120, "grandchild": -120}
"""How far ahead the wall clock of each is."""
_PATIENCE = 60.0


class Three:
    """Three agents that live for several tests, and the model they talk to."""

    model: ModelServer
    channel: Any

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._runner = asyncio.Runner()
        self._stack = contextlib.AsyncExitStack()
        self.books = Books(directory)

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        self._runner.run(work)

    async def start(self) -> None:
        self.model = await self._stack.enter_async_context(ModelServer(default=LONG))
        targets = await asyncio.gather(
            *(self._started(name, skew) for name, skew in NODES.items())
        )
        for process, following in zip(
            self._processes.values(), [*targets[1:], ""], strict=True
        ):
            assert process.stdin is not None
            process.stdin.write(f"{following}\n".encode())
            process.stdin.flush()
        self.channel = await self._stack.enter_async_context(
            grpc.aio.insecure_channel(targets[0])
        )
        self.answers(SHORT)
        # The first call of all is slow at many places; the cases have less time.
        for kind in ("uu", "us"):
            assert (await status(self.asked(*[f"work_{kind}"] * 3)))[0] == "OK"
        await self.books.settle({("delivered", "none"): 2})
        # The others hear that it was delivered from the one that opened the run.
        spent = 2 * len(NODES) * (SHORT.tokens or 0)
        assert await self.booked({}, spent) == {("delivered", "none"): spent}
        self.answers(LONG)

    def answers(self, script: Script) -> None:
        """Let the model answer so from here on."""
        for name in NODES:
            self.model.script(name, script)

    async def _started(self, name: str, skew: int) -> str:
        paths = [str(TESTS), os.environ.get("PYTHONPATH", "")]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "MODEL": self.model.base_url,
            "SKEW": str(skew),
            DIRECTORY: str(self._directory),
            **({"BUDGET": str(BUDGET)} if name == "parent" else {}),
        }
        process = subprocess.Popen(  # noqa: ASYNC220, S603  our own interpreter
            [sys.executable, "-m", "support.rpc_node", name],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._processes[name] = process
        assert process.stdout is not None
        line = await asyncio.to_thread(process.stdout.readline)
        return f"127.0.0.1:{int(line)}"

    def close(self) -> None:
        self._runner.run(self._stack.aclose())
        self._runner.close()
        for process in self._processes.values():
            assert process.stdin is not None
            process.stdin.close()
        for process in self._processes.values():
            try:
                process.wait(_PATIENCE)
            finally:
                process.kill()
                process.wait()
                assert process.stdout is not None
                process.stdout.close()

    def kill(self, name: str) -> None:
        """End one at once, as the kernel does that is out of memory."""
        self._processes[name].kill()

    def asked(self, *plan: str) -> Any:
        """Call the parent; a plan is a method for each, with ``!`` where it is deaf."""
        steps = [[step.removesuffix("!"), step.endswith("!")] for step in plan]
        return on(self.channel, plan[0].removesuffix("!"))(json.dumps(steps).encode())

    async def called(self, since: int, tokens: int = 3) -> list[CallRecord]:
        """Wait until each of the three has so much of an answer."""

        def here() -> list[CallRecord]:
            return self.model.log.calls[since:]

        await self.model.log.wait_for(
            lambda: (
                len(here()) == len(NODES)
                and all(call.output_tokens >= tokens for call in here())
            ),
            _PATIENCE,
        )
        return here()

    def tokens(self) -> dict[Any, int]:
        """Output tokens that are booked, by fate and cause.

        The input of a call that is cut off is estimated, the output was seen to come.
        """
        return self.books.tokens(type="output")

    async def booked(self, before: dict[Any, int], spent: int) -> dict[Any, int]:
        """Wait until so many tokens are booked; what was, by fate and cause.

        For a while: of what was cut off the last chunk may have been seen by nobody.
        """
        until = time.monotonic() + 3
        while True:
            found = {
                key: count - before.get(key, 0)
                for key, count in self.tokens().items()
                if count != before.get(key, 0)
            }
            if sum(found.values()) >= spent or time.monotonic() > until:
                return found
            await asyncio.sleep(0.05)


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Three]:
    made = Three(tmp_path_factory.mktemp("books"))
    try:
        made.run(made.start())
        yield made
    finally:
        made.close()


def after(calls: list[CallRecord], t0: float) -> int:
    """Output tokens that the model made after ``t0``."""
    return sum(count for call in calls for at, count in call.chunks if at > t0)


def of_fate(booked: dict[Any, int], fate: str) -> int:
    return sum(count for (one, _), count in booked.items() if one == fate)


@pytest.mark.parametrize("kind", ["uu", "us"])
def test_e1_absolute_deadline_versus_clock_skew(three: Three, kind: str) -> None:
    """One deadline holds in all three within 0.3 s, two minutes apart by the wall."""

    async def check() -> None:
        since, before = len(three.model.log.calls), three.tokens()
        runs = three.books.runs()
        begun = time.monotonic()
        call = three.asked(*[f"work_{kind}"] * 3)
        code, _, trailing = await status(call)
        t0 = begun + BUDGET
        assert abs(time.monotonic() - t0) < 0.3
        assert (code, trailing["hangup-cause"]) == ("DEADLINE_EXCEEDED", "deadline")
        calls = await three.called(since)
        await three.model.log.closed_count(since + 3)
        for one in calls:
            assert one.closed is not None
            assert -0.05 < one.closed - t0 < 0.3, one.model
        spent = sum(one.output_tokens for one in calls)
        booked = await three.booked(before, spent)
        assert {cause for _, cause in booked} <= {"deadline"}
        # What was on its way at the close counts as made, and nobody has seen it.
        assert abs(sum(booked.values()) - spent) <= len(calls)
        assert abs(of_fate(booked, "wasted") - after(calls, t0)) <= len(calls)
        await three.books.settle(_one_more(runs, ("abandoned", "deadline")))

    three.run(check())


@pytest.mark.parametrize("kind", ["uu", "us"])
def test_f6_parent_dead_children_billing(three: Three, kind: str) -> None:
    """A user who walks away stops all three in a second; one run is counted."""

    async def check() -> None:
        since, before = len(three.model.log.calls), three.tokens()
        runs = three.books.runs()
        call = three.asked(*[f"work_{kind}"] * 3)
        calls = await three.called(since)
        t0 = time.monotonic()
        call.cancel()
        await three.model.log.closed_count(since + 3)
        for one in calls:
            assert one.closed is not None
            assert one.closed - t0 < 1.0, one.model
        spent = sum(one.output_tokens for one in calls)
        booked = await three.booked(before, spent)
        assert {cause for _, cause in booked} <= {"disconnect"}
        assert abs(sum(booked.values()) - spent) <= len(calls)
        assert abs(of_fate(booked, "wasted") - after(calls, t0)) <= len(calls)
        await three.books.settle(_one_more(runs, ("abandoned", "disconnect")))

    three.run(check())


@pytest.mark.parametrize(
    "plan",
    [
        ("work_uu", "watch_uu!", "work_uu"),
        ("watch_uu!", "work_uu!", "work_uu!"),
    ],
    ids=["child observed", "parent observed"],
)
def test_one_bill_over_modes(three: Three, plan: tuple[str, ...]) -> None:
    """Enforced above observed and the other way round, the log and the books agree.

    The user walks away; what is only observed goes on to its end, and all that it
    spends from then on is waste, wherever it is spent, of one run.
    """

    async def check() -> None:
        three.answers(FINITE)
        try:
            since, before = len(three.model.log.calls), three.tokens()
            runs = three.books.runs()
            call = three.asked(*plan)
            calls = await three.called(since, tokens=10)
            t0 = time.monotonic()
            call.cancel()
            await three.model.log.closed_count(since + 3, 30)
        finally:
            three.answers(LONG)
        spent = sum(one.output_tokens for one in calls)
        wasted = after(calls, t0)
        observed = sum(one.model != "parent" or "watch" in plan[0] for one in calls)
        assert wasted > observed * (FINITE.tokens or 0) // 2
        booked = await three.booked(before, spent)
        assert {fate for fate, _ in booked} == {"sunk", "wasted"}
        assert {cause for _, cause in booked} == {"disconnect"}
        assert abs(sum(booked.values()) - spent) <= len(calls)
        assert abs(of_fate(booked, "wasted") - wasted) <= 5 * len(calls)
        await three.books.settle(_one_more(runs, ("abandoned", "disconnect")))

    three.run(check())


@pytest.mark.parametrize("kind", [wide("us")])
def test_f6_a_parent_that_is_killed_takes_its_children_along(
    tmp_path: Path, kind: str
) -> None:
    """``kill -9`` of the parent: the others stop by the broken connection, in 2 s."""
    made = Three(tmp_path)

    async def check() -> None:
        await made.start()
        since = len(made.model.log.calls)
        made.asked(*[f"work_{kind}"] * 3)
        calls = await made.called(since)
        t0 = time.monotonic()
        made.kill("parent")
        await made.model.log.closed_count(since + 3)
        for one in calls:
            assert one.closed is not None
            assert one.closed - t0 < 2.0, one.model

    try:
        made.run(check())
    finally:
        made.close()


def _one_more(runs: dict[Any, int], kind: tuple[str, str]) -> dict[Any, int]:
    return {**runs, kind: runs.get(kind, 0) + 1}
