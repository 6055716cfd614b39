"""Applications without a mention of hangup: their waste is measured, and stopped.

Each is started as its owner would start it with OpenTelemetry's zero code, and visited
by a crowd on real sockets of which some leave while the model speaks. The model's log
is the truth. Half of the crowd asks where a rule of the policy file enforces.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from matrix import environments
from support.requires import require
from support.rig import Caller
from support.zerocode.starts import Sink, declared, started

from hangup.demo.brain import Script
from hangup.demo.model_server import ModelServer
from hangup.demo.truth import split_tokens

if TYPE_CHECKING:
    from collections.abc import Mapping

    from support.serving import Serving

    from hangup.demo.journal import CallRecord

pytestmark = [pytest.mark.wide, pytest.mark.timeout(290)]

SCRIPT = Script(tokens=45, input_tokens=300, rate=15, first_token=0.05)
"""One of three calls that an answer takes; this one takes 3 s."""
LEAVE, STAY = 6, 3
AT_ONCE = 2
"""Processes that start: each keeps a core busy for seconds."""
LAG = 0.1
"""Seconds that a busy machine may take to tell hangup that a user left."""
POLICY = '{"rules": [{"route": "/ask/stopped-*", "mode": "enforce"}]}'


@dataclass(frozen=True)
class Start:
    """How one process is started.

    Attributes:
        target: The application.
        name: What its runs are called.
        environment: Of the matrix; "" is the one the tests run in.
        last: OpenTelemetry's zero code comes after everything else.
        variables: More of them.
        halves: Which halves of the crowd come: of those that are observed, and of
            those that are stopped.
        by_file: Everything is set in one file, of OpenTelemetry's declarative kind.
        cuts_itself: The framework stops a view when its client leaves, whether or not
            hangup is there.
    """

    target: str
    name: str = "/ask/{thread}"
    environment: str = ""
    last: bool = False
    variables: Mapping[str, str] = field(default_factory=dict)
    halves: tuple[str, ...] = ("observed", "stopped")
    by_file: bool = False
    cuts_itself: bool = False


# Else OpenTelemetry's zero code has instrumented it by then, and Phoenix gets nothing.
_OF_PHOENIX_ALONE = {"OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "openai"}
STARTS = {
    "fastapi": Start("fastapi_app", halves=("observed",)),
    "fastapi enforced": Start(
        "fastapi_app", variables={"HANGUP_MODE": "enforce"}, halves=("stopped",)
    ),
    "starlette": Start("starlette_app", by_file=True),
    "litestar, unsampled": Start(
        "litestar_app", variables={"OTEL_TRACES_SAMPLER": "always_off"}
    ),
    "django": Start("django_app", "/ask/<str:thread>", cuts_itself=True),
    "quart": Start("quart_app", "/ask/<thread>", cuts_itself=True),
    "logfire last": Start("logfire_app", environment="setups"),
    "logfire first": Start("logfire_app", environment="setups", last=True),
    "phoenix last": Start(
        "phoenix_app", environment="setups", variables=_OF_PHOENIX_ALONE
    ),
    "phoenix first": Start("phoenix_app", environment="setups", last=True),
    "traceloop last": Start("traceloop_app", environment="traceloop"),
    "traceloop first": Start("traceloop_app", environment="traceloop", last=True),
}


@dataclass
class Half:
    """What came of one half of a crowd.

    Attributes:
        true_waste: Tokens that the model generated, or read, for users who had left.
        spent: All of its tokens.
        waste: What hangup measured of the first.
        runs: By outcome and cause.
        unfinished: Users who stayed and got no answer.
    """

    true_waste: int = 0
    spent: int = 0
    waste: float = 0
    runs: dict[tuple[str, str], int] = field(default_factory=dict)
    unfinished: int = 0

    @property
    def is_off(self) -> bool:
        """Whether the measure is more than 2 % from the truth, and the lag."""
        room = LEAVE * LAG * SCRIPT.rate
        return abs(self.waste - self.true_waste) > max(room, 0.02 * self.true_waste)


@dataclass
class Found:
    """What came of one start."""

    halves: dict[str, Half]
    said: str
    exported: int
    all_runs: int


class Bench:
    """Everything that the tests ask about: first it is started, then visited."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._starting = asyncio.Semaphore(AT_ONCE)
        self._stack = contextlib.AsyncExitStack()
        self.found: dict[str, Found] = {}
        self.unavailable: dict[str, str] = {}

    async def run(self, names: set[str]) -> None:
        async with self._stack:
            wanted = [name for name in STARTS if name in names]
            up = await asyncio.gather(*(self._start(name) for name in wanted))
            # Not before all are up: starting takes all there is of a machine.
            await asyncio.gather(*(self._visit(*one) for one in up if one))
            for one in up:
                if one:
                    one[2].process.terminate()  # all at a time: each takes a second

    async def _start(self, name: str) -> tuple[str, ModelServer, Serving, Sink] | None:
        start, python = STARTS[name], Path(sys.executable)
        if start.environment:
            try:
                python = await asyncio.to_thread(
                    environments.python_of, start.environment
                )
            except environments.Unavailable as error:
                self.unavailable[name] = str(error)
                return None
        directory = self._directory / name.replace(" ", "-")
        directory.mkdir()
        policy = directory / "policy.json"
        policy.write_text(POLICY)
        sink, enter = Sink(), self._stack.enter_async_context
        model = await enter(ModelServer(default=SCRIPT))
        url = await enter(sink.listening())
        variables = {
            "PHOENIX_COLLECTOR_ENDPOINT": f"{url}/v1/traces",
            "TRACELOOP_BASE_URL": url,
            "TRACELOOP_API_KEY": "test",
            "INSTRUMENT": "last" if start.last else "first",
            **start.variables,
        }
        if start.by_file:
            variables["OTEL_CONFIG_FILE"] = str(declared(directory, policy, url))
        elif len(start.halves) > 1:
            variables["HANGUP_POLICY_FILE"] = str(policy)
        async with self._starting:
            served = await enter(
                started(
                    start.target,
                    directory,
                    model.base_url,
                    python=python,
                    instrument=not start.last,
                    installed=not start.environment,
                    environment=variables,
                )
            )
            # The first call of a process imports for a good part of a second.
            await (await Caller.asks(served, "/ask/first")).answer()
        return name, model, served, sink

    async def _visit(
        self, name: str, model: ModelServer, served: Serving, sink: Sink
    ) -> None:
        start = STARTS[name]
        visits = [_visited(model, served, start, half) for half in start.halves]
        halves = dict(zip(start.halves, await asyncio.gather(*visits), strict=True))
        all_runs = sum(served.books.runs().values())
        self.found[name] = Found(halves, served.said, sink.traces, all_runs)


async def _visited(
    model: ModelServer, served: Serving, start: Start, half: str
) -> Half:
    """Let one half of the crowd come and go, and see what is measured of it."""
    tags = [f"{half}-{number}" for number in range(LEAVE)]
    left = dict(
        zip(
            tags,
            await asyncio.gather(
                *(_walks_away(model, served, tag, at) for at, tag in enumerate(tags))
            ),
            strict=True,
        )
    )
    stayers = [f"{half}-stays-{number}" for number in range(STAY)]
    answers = await asyncio.gather(*(_stays(served, tag) for tag in stayers))
    mode = "enforce" if half == "stopped" else "observe"

    def of_half() -> list[CallRecord]:
        return [one for one in model.log.calls if one.user.startswith(f"{half}-")]

    result = Half(unfinished=answers.count(False))
    expected = {("abandoned", "disconnect"): LEAVE, ("delivered", "none"): STAY}
    if mode == "observe" or len(start.halves) == 1:
        expected["delivered", "none"] += 1  # the first of all
    with contextlib.suppress(AssertionError):  # it is for the tests to say
        await served.books.settle(expected, within=15, mode=mode, name=start.name)
    result.runs = served.books.runs(mode=mode, name=start.name)
    if half == "observed" and not start.cuts_itself:
        await model.log.wait_for(
            lambda: len(of_half()) == (LEAVE + STAY) * 3, within=30
        )
    await model.log.wait_for(lambda: all(one.closed for one in of_half()), within=30)
    calls = of_half()
    result.spent = sum(call.total_tokens for call in calls)
    result.true_waste = sum(
        split_tokens(call, left[call.user])[1] for call in calls if call.user in left
    )

    def read() -> bool:
        books = served.books
        result.waste = books.total("hangup.tokens", fate="wasted", mode=mode)
        return not result.is_off

    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(5):
            while not read():  # noqa: ASYNC110  another process writes it
                await asyncio.sleep(0.1)
    return result


async def _walks_away(
    model: ModelServer, served: Serving, tag: str, number: int
) -> float:
    """Ask, leave while the first call speaks, and return when."""
    caller = await Caller.asks(served, f"/ask/{tag}")

    def heard_enough() -> bool:
        own: list[CallRecord] = model.log.of(tag)
        return bool(own) and own[0].output_tokens >= 10 + 2 * number

    await model.log.wait_for(heard_enough, within=30)
    return caller.leaves()


async def _stays(served: Serving, tag: str) -> bool:
    status, _, body = await (await Caller.asks(served, f"/ask/{tag}")).answer()
    return status == 200 and len(body) > 50


@pytest.fixture(scope="module")
def bench(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Bench:
    made = Bench(tmp_path_factory.mktemp("zerocode"))
    asked = (getattr(item, "callspec", None) for item in request.session.items)
    asyncio.run(made.run({one.params.get("name") for one in asked if one}))
    for name, found in made.found.items():
        print(name, found)  # noqa: T201  shown where a test fails
    return made


def _found(bench: Bench, name: str) -> Found:
    if name in bench.unavailable:
        require(f"environment for it ({bench.unavailable[name]})", present=False)
    return bench.found[name]


@pytest.mark.parametrize("name", STARTS)
def test_every_run_is_counted_once_under_its_route(bench: Bench, name: str) -> None:
    found = _found(bench, name)
    counted = 0
    for half in found.halves.values():
        assert half.runs["abandoned", "disconnect"] == LEAVE
        counted += sum(half.runs.values())
        assert half.unfinished == 0
    assert counted == found.all_runs == (LEAVE + STAY) * len(found.halves) + 1
    for noise in ("Traceback", "Failed to detach", "ended span", "never retrieved"):
        assert noise not in found.said


@pytest.mark.parametrize(
    "name", [name for name, start in STARTS.items() if "observed" in start.halves]
)
def test_observe_measures_the_waste_to_two_per_cent(bench: Bench, name: str) -> None:
    half = _found(bench, name).halves["observed"]
    if STARTS[name].cuts_itself:
        # What is left is how long everybody takes to notice.
        assert max(half.waste, half.true_waste) < 0.03 * half.spent
        return
    # Of each who left, two calls and the better part of one.
    assert half.true_waste > LEAVE * 2 * 345
    assert half.waste == pytest.approx(half.true_waste, rel=0.02)


@pytest.mark.parametrize(
    "name", [name for name, start in STARTS.items() if "stopped" in start.halves]
)
def test_enforce_brings_the_waste_under_three_per_cent(bench: Bench, name: str) -> None:
    half = _found(bench, name).halves["stopped"]
    assert half.true_waste < 0.03 * half.spent
    assert half.waste < 0.03 * half.spent


@pytest.mark.parametrize(
    "name", [name for name in STARTS if name.startswith(("phoenix", "traceloop"))]
)
def test_whoever_owns_the_provider_still_gets_the_spans(
    bench: Bench, name: str
) -> None:
    assert _found(bench, name).exported > 0
