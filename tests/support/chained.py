"""Starts the processes of :mod:`support.chain`, and reads what they wrote."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from support.books import DIRECTORY, Books
from support.rig import Caller
from support.servers import ServedProcess

from hangup.demo.brain import Script
from hangup.demo.model_server import ModelServer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

    from hangup.demo.journal import CallRecord

TESTS = Path(__file__).parents[1]
ROLES = ("parent", "child", "grandchild")

SCRIPTS = {
    "long": Script(tokens=600, rate=20, first_token=0.05),
    "slow": Script(tokens=45, rate=15, first_token=0.05),
    "quick": Script(tokens=7, rate=200, first_token=0.01),
}
CHUNK = SCRIPTS["long"].chunk_most


def environment(where: Path, role: str, **more: str) -> dict[str, str]:
    """Return that of one of the processes."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("HANGUP_", "OTEL_"))
    }
    return {
        **kept,
        "PYTHONPATH": os.pathsep.join(
            [str(TESTS.parent / "src"), str(TESTS), kept.get("PYTHONPATH", "")]
        ),
        "ROLE": role,
        "NEXT": "",
        "JOURNAL": str(where / f"{role}.jsonl"),
        DIRECTORY: str(where),
        **more,
    }


class Chain:
    """A model in this process, and parent, child and grandchild in their own.

    Args:
        where: A directory for what they write.
        skews: Seconds by which the wall clock of a role is wrong.
        modes: The mode of a role in a scene; enforce where nothing is said.
    """

    def __init__(
        self,
        where: Path,
        *,
        skews: Mapping[str, float] | None = None,
        modes: Mapping[str, Mapping[str, str]] | None = None,
    ) -> None:
        self._where = where
        self.books = Books(where)
        self.model = ModelServer()
        for name, script in SCRIPTS.items():
            self.model.script(name, script)
        self._skews, self._modes = skews or {}, modes or {}
        self.processes: dict[str, ServedProcess] = {}

    async def __aenter__(self) -> Self:
        """Start them, and wait until all serve."""
        await self.model.__aenter__()
        following = ""
        for role in ROLES[::-1]:
            process = ServedProcess(
                "support.chain:app",
                str(TESTS),
                environment(
                    self._where,
                    role,
                    MODEL=self.model.base_url,
                    NEXT=following,
                    SKEW=str(self._skews.get(role, 0.0)),
                    MODES=json.dumps(self._modes.get(role, {})),
                ),
            )
            self.processes[role] = process
            process.__enter__()
            following = process.url
        for role in ROLES:
            await self.wrote("up", role, within=60)
        return self

    async def __aexit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        """End them."""
        await asyncio.gather(
            *(
                asyncio.to_thread(one.__exit__, None, None, None)
                for one in self.processes.values()
            )
        )
        await self.model.__aexit__(None, None, None)

    async def asks(
        self, scene: str, what: str, role: str = "parent", **headers: str
    ) -> Caller:
        """Send a request to one of them; ``_`` in names of headers is a hyphen."""
        fields = {key.replace("_", "-"): value for key, value in headers.items()}
        return await Caller.asks(self.processes[role], f"/{scene}/{what}", fields)

    def kill(self, role: str) -> None:
        """Send SIGKILL: the process says nothing to anybody any more."""
        [up] = self.written("up", role)
        os.kill(up["pid"], signal.SIGKILL)

    def calls(self, scene: str, model: str | None = None) -> list[CallRecord]:
        """Return the calls of a scene, as the model's log has them."""
        found = self.model.log.of(scene)
        return [call for call in found if model in (None, call.model)]

    async def log(self, holds: Callable[[], bool], within: float = 20.0) -> None:
        """Wait until so much is in the model's log."""
        await self.model.log.wait_for(holds, within)

    async def together(self, scene: str) -> None:
        """Let all begin their slow call, once each has come that far."""
        await self.wrote("ready", scene=scene, count=len(ROLES), within=30)
        (self._where / f"{scene}.go").touch()

    async def all_stream(self, scene: str, model: str, count: int = 3) -> None:
        """Wait until that many calls have generated something."""

        def holds() -> bool:
            begun = [one for one in self.calls(scene, model) if one.output_tokens]
            return len(begun) >= count

        await self.log(holds)

    async def all_closed(self, scene: str, count: int) -> None:
        """Wait until that many calls of a scene are over."""

        def holds() -> bool:
            closed = [one for one in self.calls(scene) if one.ended is not None]
            return len(closed) >= count

        await self.log(holds)

    def written(self, what: str, role: str = "*", scene: str = "") -> list[Any]:
        """Return the lines of that kind."""
        return lines_of(self._where, what, role, scene)

    async def wrote(
        self,
        what: str,
        role: str = "*",
        scene: str = "",
        count: int = 1,
        within: float = 10.0,
    ) -> list[Any]:
        """Wait until there are so many lines of that kind; other processes write."""
        async with asyncio.timeout(within):
            while len(found := self.written(what, role, scene)) < count:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        return found


def lines_of(where: Path, what: str, role: str = "*", scene: str = "") -> list[Any]:
    """Return what the processes wrote down of that kind."""
    lines = [
        json.loads(line)
        for path in where.glob(f"{role}.jsonl")
        for line in path.read_text().splitlines()
    ]
    return [one for one in lines if (one["what"], one["scene"]) == (what, scene)]


def spent_after(calls: list[CallRecord], t0: float) -> int:
    """Tokens that were spent at ``t0`` or later: of these the waste is made."""
    spent = 0
    for call in calls:
        spent += call.input_tokens if call.opened >= t0 else 0
        spent += sum(tokens for at, tokens in call.chunks if at >= t0)
    return spent


def spent(calls: list[CallRecord]) -> int:
    """All tokens of these calls."""
    return sum(call.total_tokens for call in calls)
