"""An example of an agent framework, served in the environment that has it.

The example is what a user would copy; it runs under uvicorn in a process of its own,
with the real packages. Its model is ours and runs here, so that its log and the times
at which callers left are on one clock.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import tempfile
import time
from dataclasses import replace
from typing import IO, TYPE_CHECKING, Any, Self

from support.callers import Answer, Caller
from support.frameworkenv import NOISE, ROOT, interpreter, variables
from support.processes import end
from support.providers.history import said
from support.providers.server import Provider
from support.providers.tireless import HELLO, Tireless, conversation
from support.servers import listening

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from types import TracebackType

    from support.providers.log import Request
    from support.providers.script import Script
    from support.providers.server import Plan

IN_TIME = 1.0
"""Seconds after a caller left in which the last model request may come."""
WATCH = 10.0
"""Seconds for which none may come after that."""
GO_ON = "go on with"
"""What callers say to a model that is to go on for ever."""
_PATIENCE = 30.0


class Served:
    """An example and its model, both served; a context manager.

    Args:
        module: Which of the examples.
        plan: How the model answers.
        environment: More variables for the process.

    Attributes:
        plan: How the model answers; may be changed at any time.
        provider: The model.
    """

    def __init__(
        self,
        module: str,
        plan: Plan | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._python = interpreter()
        self._module = module
        self._more = dict(environment or {})
        self.plan: Plan = Tireless() if plan is None else plan
        self.provider = Provider(plan=self._planned)
        self._said: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  closed at exit
        self._port = 0
        self._process: subprocess.Popen[bytes] | None = None

    def _planned(self, asked: Mapping[str, Any]) -> Script:
        return self.plan(asked)

    def __enter__(self) -> Self:
        self.provider.__enter__()
        sock = listening()
        self._port = sock.getsockname()[1]
        program = ROOT / "tests" / "support" / "framework_server.py"
        with sock:
            self._process = subprocess.Popen(  # noqa: S603  our own program
                # -P: its directory has an "agents", as one framework has.
                [self._python, "-P", program, self._module, str(sock.fileno())],
                pass_fds=[sock.fileno()],
                env=self._environment(),
                stdout=self._said,
                stderr=subprocess.STDOUT,
            )
        # It listens from the start: this is answered as soon as there is a server.
        asyncio.run(self.books())
        return self

    def _environment(self) -> dict[str, str]:
        return variables() | {
            "OPENAI_BASE_URL": f"{self.provider.url}/v1",
            "OPENAI_API_KEY": "test",
            "ANTHROPIC_BASE_URL": self.provider.url,
            "ANTHROPIC_API_KEY": "test",
            **self._more,
        }

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            end(self._process, _PATIENCE)
        finally:
            self.provider.__exit__(kind, error, trace)
            if error is not None:
                print(self.log)  # noqa: T201  pytest shows it with the failure
            self._said.close()

    @property
    def log(self) -> str:
        """What the process has written to its outputs."""
        self._said.seek(0)
        return self._said.read().decode()

    def quiet(self) -> None:
        """Assert that nothing in the log speaks of a stop that went wrong."""
        log = self.log
        assert not [noise for noise in NOISE if noise in log], log

    # Callers

    async def ask(
        self,
        thread: str,
        text: str,
        path: str = "/chat/{thread}",
        budget: float | None = None,
    ) -> Answer:
        """Say something on a thread, and wait for the answer."""
        caller = await self.caller(thread, text, path, budget)
        return await caller.answer()

    async def walk_away(
        self, thread: str, text: str, after: float, path: str = "/chat/{thread}"
    ) -> float:
        """Say something on a thread and leave so many seconds later.

        Returns:
            When that was, in seconds of ``time.monotonic``.
        """
        caller = await self.caller(thread, text, path)
        await asyncio.sleep(after)
        return caller.leaves()

    async def caller(
        self,
        thread: str,
        text: str,
        path: str = "/chat/{thread}",
        budget: float | None = None,
    ) -> Caller:
        """Say something on a thread; the answer is not waited for."""
        headers = {} if budget is None else {"x-hangup-budget": str(budget)}
        target = path.format(thread=thread)
        return await self._send("POST", target, {"text": text}, headers)

    async def _send(
        self, method: str, path: str, body: object, headers: Mapping[str, str]
    ) -> Caller:
        data = json.dumps(body).encode()
        lines = [
            f"{method} {path} HTTP/1.1",
            *("host: agent", "connection: close", "content-type: application/json"),
            f"content-length: {len(data)}",
            *(f"{name}: {value}" for name, value in headers.items()),
        ]
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + data)
        await writer.drain()
        return Caller(reader, writer)

    # What the process counted, and what the model saw

    async def books(self) -> dict[str, float]:
        """Return what hangup counted: runs by outcome and cause, and totals."""
        found: dict[str, float] = await self._control("GET", "/-/books")
        return found

    async def kill(self) -> int:
        """Kill every run; returns how many."""
        return int((await self._control("POST", "/-/kill"))["killed"])

    async def _control(self, method: str, path: str) -> Any:
        caller = await self._send(method, path, {}, {})
        return json.loads((await caller.answer()).body)

    async def counted(
        self, before: Mapping[str, float], **least: float
    ) -> dict[str, float]:
        """Return what was counted since ``before``, once no run lives.

        Args:
            before: What :meth:`books` returned then.
            least: What must have been counted; an underscore stands for a space.
        """
        async with asyncio.timeout(_PATIENCE):
            while True:
                now = await self.books()
                change = {key: now[key] - before.get(key, 0) for key in now}
                if not now["live"] and all(
                    change.get(key.replace("_", " "), 0) >= number
                    for key, number in least.items()
                ):
                    return {key: value for key, value in change.items() if value}
                await asyncio.sleep(0.05)

    def requests(self, thread: str) -> list[Request]:
        """Return the model requests of a conversation."""
        return [
            request
            for request in self.provider.log.requests
            if conversation(request.asked) == thread
        ]

    def in_tools(self, thread: str) -> int:
        """Return how many model requests of a conversation's subagents are open."""
        asked = self.requests(thread)
        outer = asked[0].asked if asked else {}
        return sum(
            one.closed is None and said(one.asked)[0] != said(outer)[0] for one in asked
        )

    def late(self, left: Mapping[str, float]) -> dict[str, list[float]]:
        """Return what came too late: by thread, seconds after its caller had left.

        That is every request opened, and every one still generating, more than
        ``IN_TIME`` after it.
        """
        found: dict[str, list[float]] = {}
        for thread, moment in left.items():
            for request in self.requests(thread):
                times = [request.opened, *(when for when, _ in request.marks)]
                if (last := max(times)) > moment + IN_TIME:
                    found.setdefault(thread, []).append(round(last - moment, 2))
        return found

    def tokens_after(self, thread: str, moment: float) -> int:
        """Return the output tokens that the model generated after a moment."""
        return sum(
            request.output - request.output_before(moment)
            for request in self.requests(thread)
        )

    def refusals(self) -> list[str]:
        """Return why the model refused histories, one entry a request."""
        asked = self.provider.log.requests
        return [request.refusal for request in asked if request.refusal]


def threads(count: int, first: int = 0) -> list[str]:
    """Return names of conversations."""
    return [f"thread-{number}" for number in range(first, first + count)]


async def all_walk_away(
    app: Served,
    names: Sequence[str],
    path: str = "/chat/{thread}",
    least: float = 1.0,
    most: float = 2.0,
) -> dict[str, float]:
    """Let a caller a conversation ask and leave, each at a point of its own.

    Returns:
        When each left.
    """
    step = (most - least) / max(1, len(names) - 1)
    moments = await asyncio.gather(
        *(
            app.walk_away(name, f"{GO_ON} {name}", least + place * step, path)
            for place, name in enumerate(names)
        )
    )
    return dict(zip(names, moments, strict=True))


async def all_stop(
    app: Served, names: Sequence[str], path: str = "/chat/{thread}"
) -> None:
    """Every caller leaves, all stops, nothing goes on, and all is counted once."""
    before = await app.books()
    left = await all_walk_away(app, names, path)
    await watched(app, left)
    counted = await app.counted(before, abandoned_disconnect=len(names))
    assert runs(counted) == {"abandoned disconnect": len(names)}
    assert counted.get("unsettled", 0) == 0


async def watched(app: Served, left: Mapping[str, float]) -> None:
    """For ``WATCH`` seconds nothing comes later than ``IN_TIME`` after a caller left.

    Args:
        app: Where they left.
        left: When, by thread.
    """
    await asyncio.sleep(max(left.values()) + IN_TIME + WATCH - time.monotonic())
    assert app.late(left) == {}
    assert all(app.requests(name) for name in left), "not all of them began"


async def all_return(app: Served, names: Sequence[str]) -> None:
    """Everyone says hello on the old thread: all are answered, no history refused.

    The model refuses broken histories.
    """
    before = await app.books()
    refused = len(app.refusals())
    answers = await asyncio.gather(
        *(app.ask(name, f"{HELLO}, {name}") for name in names)
    )
    assert app.refusals()[refused:] == []
    assert [answer.status for answer in answers] == [200] * len(names)
    assert all(answer.text for answer in answers)
    counted = await app.counted(before, delivered=len(names))
    assert runs(counted) == {"delivered": len(names)}


def slow_inside(plan: Plan) -> Plan:
    """Return a plan in which a model that a tool asks does not answer for long."""

    def planned(asked: Mapping[str, Any]) -> Script:
        script = plan(asked)
        inside = not said(asked)[0].startswith((GO_ON, HELLO))
        return replace(script, rate=0.1) if inside else script

    return planned


async def kill_in_tools_and_return(
    app: Served, names: Sequence[str], at_once: int = 1
) -> None:
    """Every run is killed while so many tools of it run; then all say hello, at once.

    The plan must ask for tools that ask a model, and be :func:`slow_inside`.
    """
    before = await app.books()
    callers = await asyncio.gather(
        *(app.caller(name, f"{GO_ON} {name}") for name in names)
    )
    await asyncio.to_thread(
        app.provider.log.wait,
        lambda: all(app.in_tools(name) == at_once for name in names),
    )
    killed = await app.kill()
    assert killed == len(names)
    answers = await asyncio.gather(*(caller.answer() for caller in callers))
    assert [answer.status for answer in answers] == [409] * len(names)
    assert {answer.headers["hangup-cause"] for answer in answers} == {"killed"}
    await all_return(app, names)
    counted = await app.counted(before)
    assert runs(counted) == {"abandoned killed": len(names), "delivered": len(names)}


def runs(counted: Mapping[str, float]) -> dict[str, float]:
    """Return the counts of runs by outcome and cause."""
    kinds = ("abandoned", "delivered", "late")
    return {key: count for key, count in counted.items() if key.startswith(kinds)}


@contextlib.contextmanager
def served(module: str, plan: Plan | None = None) -> Iterator[Served]:
    """Serve an example; at the end its log must be quiet."""
    with Served(module, plan) as app:
        yield app
        app.quiet()
