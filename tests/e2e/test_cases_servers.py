"""Cases a1, a2, a7, a8, a9 and a11 on every server, in processes of their own."""

from __future__ import annotations

import asyncio
import contextlib
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import websockets
from support.crowd import MANY, Http1Crowd
from support.holding import holding
from support.rig import IN_TIME, LONG, SHORT, Caller
from support.serving import serving

from hangup.demo.brain import Script
from hangup.demo.model_server import ModelServer

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator

    from hangup.demo.journal import CallRecord

pytestmark = pytest.mark.timeout(110)

DISCONNECT = ("abandoned", "disconnect")
DEADLINE = ("abandoned", "deadline")
DELIVERED = ("delivered", "none")
OPTIONS = {"uvicorn": (), "hypercorn": (), "granian": ("--workers", "2")}
GRANIAN = pytest.param("granian", marks=pytest.mark.wide)
HYPERCORN = pytest.param("hypercorn", marks=pytest.mark.wide)
PATIENT = Script(tokens=30, input_tokens=20, rate=20, first_token=0.05, jitter=0.0)
"""An answer that takes 1.5 s."""


class Bench:
    """A server that lives for several tests, and the model it talks to.

    The loop turns while a test runs, and stands still between them.
    """

    model: ModelServer
    served: Any

    def __init__(self, server: str, directory: Any) -> None:
        self.within = 2 * IN_TIME if server == "granian" else IN_TIME
        self._server, self._directory = server, directory
        self._runner = asyncio.Runner()
        self._stack = contextlib.AsyncExitStack()

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        self._runner.run(work)

    async def start(self) -> None:
        self.model = await self._stack.enter_async_context(ModelServer(default=LONG))
        self.model.script("quick", SHORT)
        self.model.script("patient", PATIENT)
        self.served = await self._stack.enter_async_context(
            serving(
                self._server,
                self._directory,
                self.model.base_url,
                target="support.leaf:stacks",
                options=OPTIONS[self._server],
            )
        )

    def close(self) -> None:
        self._runner.run(self._stack.aclose())
        self._runner.close()

    @contextlib.asynccontextmanager
    async def counting(self, *kinds: tuple[str, str]) -> Any:
        """The block ends exactly so many runs, of these kinds."""
        expected = self.served.books.runs()
        for kind in kinds:
            expected[kind] = expected.get(kind, 0) + 1
        yield
        await self.served.books.settle(expected)

    async def next_call(self, model: str, since: int) -> CallRecord:
        """Wait for the first call to ``model`` after the first ``since`` calls."""

        def found() -> list[CallRecord]:
            return [
                call for call in self.model.log.calls[since:] if call.model == model
            ]

        await self.model.log.wait_for(lambda: bool(found()))
        return found()[0]

    async def closed(self, call: CallRecord, within: float = 20.0) -> float:
        """Wait until the call is over, and return when it was."""
        await self.model.log.wait_for(lambda: call.closed is not None, within)
        assert call.closed is not None
        return call.closed


@pytest.fixture(scope="module", params=["uvicorn", HYPERCORN, GRANIAN])
def bench(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Bench]:
    made = Bench(request.param, tmp_path_factory.mktemp(request.param))
    made.run(made.start())
    yield made
    made.close()


async def walk_away(bench: Bench, path: str) -> tuple[CallRecord, float]:
    """Ask, leave while the model answers; return its call, and when that was."""
    since = bench.model.log.opened
    caller = await Caller.asks(bench.served, path)
    call = await bench.next_call("long", since)
    return call, caller.leaves()


@pytest.mark.parametrize("order", ["around", "inside"])
def test_a1_bhm_hides_disconnect(bench: Bench, order: str) -> None:
    """A function-style middleware, before or after ours, hides nothing from it."""

    async def check() -> None:
        async with bench.counting(DISCONNECT):
            call, left = await walk_away(bench, f"/{order}/json")
            assert await bench.closed(call) - left <= bench.within
            assert call.cut

    bench.run(check())


def test_a1_without_hangup_the_call_runs_to_its_end(bench: Bench) -> None:
    """The rig alone: the case bites, and nothing is counted."""

    async def check() -> None:
        async with bench.counting():
            since = bench.model.log.opened
            caller = await Caller.asks(bench.served, "/without/json?model=patient")
            call = await bench.next_call("patient", since)
            caller.leaves()
            await bench.closed(call)
            assert not call.cut
            assert call.output_tokens == 30

    bench.run(check())


@pytest.mark.parametrize("order", ["plain", "around", "inside"])
def test_a2_nonstreaming_handler_runs_on(bench: Bench, order: str) -> None:
    """JSON and stream end alike."""

    async def check() -> None:
        async with bench.counting(DISCONNECT, DISCONNECT):
            both = [await walk_away(bench, f"/{order}/{k}") for k in ("json", "stream")]
            for call, left in both:
                assert await bench.closed(call) - left <= bench.within
                assert call.cut

    bench.run(check())


def test_a8_background_work_must_live(bench: Bench) -> None:
    """Work after the answer outlives deadline and client; it is not waste."""

    async def check() -> None:
        async with bench.counting(DELIVERED):
            call, _ = await answered(bench, "/plain/background?model=patient")
            await bench.closed(call)
            assert not call.cut
            assert call.output_tokens == 30
        assert not bench.served.books.tokens(name="/background", fate="wasted")

    bench.run(check())


def test_a8_background_inherits_the_deadline_where_asked(bench: Bench) -> None:
    """With ``background_in_run`` it is stopped at the deadline, counted once."""

    async def check() -> None:
        async with bench.counting(DEADLINE):
            call, asked = await answered(bench, "/tied/background", BUDGET)
            assert BUDGET - 0.1 <= await bench.closed(call) - asked <= BUDGET + 1
            assert call.cut
        async with bench.counting(DELIVERED):
            call, _ = await answered(bench, "/tied/background?model=quick", 30)
            await bench.closed(call)

    bench.run(check())


BUDGET = 2.0


async def answered(
    bench: Bench, path: str, budget: float = BUDGET
) -> tuple[CallRecord, float]:
    """Take an answer and go; return the call made after it, and when it was asked."""
    since, asked = bench.model.log.opened, time.monotonic()
    headers = {"X-Hangup-Budget": str(budget)}
    caller = await Caller.asks(bench.served, path, headers)
    assert (await caller.answer())[0] == 200
    await bench.model.log.wait_for(lambda: bench.model.log.opened >= since + 2)
    return bench.model.log.calls[since + 1], asked


def test_a9_websocket_nobody_receives(bench: Bench) -> None:
    """The close is seen while nobody receives; another socket misses no message."""

    async def check() -> None:
        url = f"ws://127.0.0.1:{bench.served.port}/plain/ws"
        async with (
            bench.counting(DISCONNECT, DELIVERED),
            websockets.connect(f"{url}?model=patient", proxy=None) as other,
        ):
            await other.send("before the answer")
            since = bench.model.log.opened
            leaving = await websockets.connect(url, proxy=None)
            call = await bench.next_call("long", since)
            left = time.monotonic()
            leaving.transport.abort()
            assert await bench.closed(call) - left <= bench.within
            assert await other.recv() != "before the answer"
            assert await other.recv() == "before the answer"
            await other.send("and after")
            assert await other.recv() == "and after"

    bench.run(check())


@pytest.mark.parametrize(
    ("path", "headers", "budget"),
    [("/plain", (f"X-Hangup-Budget: {BUDGET}",), BUDGET), ("/limited", (), 1.5)],
    ids=["its deadline header", "the server's default"],
)
def test_a11_gateway_swallows_abort(
    bench: Bench, path: str, headers: tuple[str, ...], budget: float
) -> None:
    """A client that nobody sees leave is stopped for at the deadline, once."""

    async def check() -> None:
        async with (
            bench.counting(DEADLINE, DEADLINE),
            holding(bench.served.port, *headers) as port,
        ):
            for kind in ("json", "stream"):
                since, asked = bench.model.log.opened, time.monotonic()
                proxy: Any = SimpleNamespace(port=port)
                caller = await Caller.asks(proxy, f"{path}/{kind}")
                call = await bench.next_call("long", since)
                caller.leaves()
                assert budget - 0.1 <= await bench.closed(call) - asked <= budget + 1
                assert call.cut

    bench.run(check())


@pytest.mark.parametrize("bench", [GRANIAN], indirect=True)
def test_a7_granian_late_or_lost_disconnect(bench: Bench) -> None:
    """Two workers hear of every client that leaves, and count each once."""

    async def check() -> None:
        for kind in ("json", "stream"):
            async with bench.counting(*[DISCONNECT] * MANY, *[DELIVERED] * MANY):
                crowd = Http1Crowd(bench.served, f"plain/{kind}")
                found = await crowd.walk_away(bench.model)
                assert len(found) == MANY
                assert max(found) <= bench.within
                await crowd.come_back()
        each = bench.served.books.of_each
        assert len(each) == 2
        assert all(DISCONNECT in books.runs() for books in each)

    bench.run(check())


def test_no_server_has_logged_an_error(bench: Bench) -> None:
    """For none that left by now, or was cut at a deadline; runs after the cases."""
    for complaint in ("Traceback", "No response returned", "without completing"):
        assert complaint not in bench.served.said
