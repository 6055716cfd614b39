"""Runs the demo: starts the processes, lets the users ask twice, collects, ends.

Three processes on loopback ports serve both passes: the model server, the agent,
the subagent. A pass's metrics are what it added to theirs. Nothing is ended but what
was started here.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import time
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from hangup.demo.child import Child
from hangup.demo.journal import CallRecord
from hangup.demo.measured import added
from hangup.demo.population import population
from hangup.demo.results import Demo, Pass
from hangup.demo.sockets import get_json
from hangup.demo.users import visit_all
from hangup.demo.workload import MODES, Setting

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from hangup.demo.population import User

_SETTLES_WITHIN = 45.0
"""Seconds after the last user; longer than any answer takes."""
_POLL = 0.1


class NotSettledError(RuntimeError):
    """Work of the demo went on long after its users were gone."""


async def run_demo(
    users: int,
    seed: int,
    setting: Setting | None = None,
    *,
    on_progress: Callable[[str, int], None] = lambda _mode, _done: None,
) -> Demo:
    """Run both passes.

    Args:
        users: How many people ask.
        seed: Seeds the people and the model.
        setting: Which model, and how it behaves.
        on_progress: Told of the mode and the number of visits that are over.

    Raises:
        NotSettledError: A pass did not come to rest.
        RuntimeError: A process did not start.
    """
    setting = setting or Setting()
    people = population(users, seed, setting.first_token)
    async with processes(seed, setting) as rig:
        await rig.until_settled("warm-up")
        passes = []
        for mode in MODES:
            progress = functools.partial(on_progress, mode)
            passes.append(await rig.run_pass(mode, people, progress))
    observe, enforce = passes
    return Demo(version("hangup"), users, seed, observe, enforce, setting)


@dataclass(frozen=True)
class Rig:
    """The running processes."""

    model: Child
    agent: Child
    subagent: Child

    async def run_pass(
        self, mode: str, people: Sequence[User], progress: Callable[[int], None]
    ) -> Pass:
        """Let everybody ask once, and wait until nothing runs any more."""
        before = await self._tell("metrics")
        progress(0)
        done = itertools.count(1)
        visits = await visit_all(
            self.agent.url, people, mode, lambda _visit: progress(next(done))
        )
        calls = await self.until_settled(mode)
        after = await self._tell("metrics")
        steps = await self._tell("steps")
        agent, subagent = map(added, before, after)
        return Pass(mode, visits, calls, agent, subagent, list(itertools.chain(*steps)))

    async def until_settled(self, mode: str) -> list[CallRecord]:
        """Return the calls of a pass once nothing runs any more, in any process.

        "Nothing" has to be seen twice in a row: between two calls of one run there
        is none open.
        """
        end = time.monotonic() + _SETTLES_WITHIN
        seen = -1
        while time.monotonic() < end:
            log = await get_json(f"{self.model.url}/log?user={mode}")
            calls = [CallRecord.from_json(call) for call in log["calls"]]
            states = await self._tell("idle")
            if all(call.ended for call in calls) and all(it["idle"] for it in states):
                if seen == len(calls):
                    return calls
                seen = len(calls)
            else:
                seen = -1
            await asyncio.sleep(_POLL)
        raise NotSettledError(f"the {mode} pass did not come to rest: {states}")

    async def _tell(self, what: str) -> list[Any]:
        """Return what agent and subagent say of themselves."""
        return [
            await get_json(f"{one.url}/demo/{what}")
            for one in (self.agent, self.subagent)
        ]


@contextlib.asynccontextmanager
async def processes(
    seed: int,
    setting: Setting,
    *,
    metrics_ports: Sequence[int] = (),
    keep: int | None = None,
) -> AsyncIterator[Rig]:
    """Start the three side by side; all are ended in any case.

    Args:
        seed: The model's.
        setting: Which model, and how it behaves.
        metrics_ports: Where the agent and the subagent are to be scraped, if at all.
        keep: How many calls the model's log keeps; None keeps all.

    Raises:
        RuntimeError: A process did not start.
    """
    model_options = {
        "--seed": str(seed),
        "--provider-on-close": setting.on_close,
        "--first-token": str(setting.first_token),
    }
    if keep is not None:
        model_options["--keep"] = str(keep)
    agent_port, subagent_port = (
        [[str(port)] for port in metrics_ports] if metrics_ports else ([], [])
    )
    starts = [
        asyncio.ensure_future(Child.start(f"hangup.demo.{module}", *arguments))
        for module, *arguments in (
            ("model_server", *itertools.chain(*model_options.items())),
            ("agent", setting.provider, *agent_port),
            ("subagent", setting.provider, *subagent_port),
        )
    ]
    try:
        model, agent, subagent = await asyncio.gather(*starts)
        model.serve({})
        subagent.serve({"model": model.url})
        agent.serve({"model": model.url, "subagent": subagent.url})
        yield Rig(model, agent, subagent)
    finally:
        started = await asyncio.gather(*starts, return_exceptions=True)
        await asyncio.gather(
            *(child.stop() for child in started if isinstance(child, Child))
        )
