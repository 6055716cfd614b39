"""FastAPI, Starlette, Litestar and Django: stopped in time, counted once, named.

Each under a real uvicorn, alone and with a function-style middleware around hangup or
inside; a run is called by the template of its route, never by its path.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Any

import pytest
import websockets
from support.crowd import QUICK, UPGRADE
from support.rig import IN_TIME, LONG, SHORT, Caller
from support.serving import serving

from hangup.demo.model_server import ModelServer

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator

pytestmark = pytest.mark.timeout(110)

TEMPLATES = {
    "fastapi": "/fastapi/{thread}",
    "starlette": "/starlette/{thread}",
    "litestar": "/litestar/{thread}",
    "django": "/django/<int:thread>",
}
STACKS = ("alone", "around", "inside")
DISCONNECT, DELIVERED = ("abandoned", "disconnect"), ("delivered", "none")


class Bench:
    """All of them in one process, and the model; the loop turns while a test runs."""

    model: ModelServer
    served: Any

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self._stack = contextlib.AsyncExitStack()

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        self._runner.run(work)

    async def start(self, directory: Any) -> None:
        self.model = await self._stack.enter_async_context(ModelServer(default=LONG))
        self.model.script("quick", SHORT)
        url, target = self.model.base_url, "support.webapps:app"
        serve = serving("uvicorn", directory, url, target=target)
        self.served = await self._stack.enter_async_context(serve)

    def close(self) -> None:
        self._runner.run(self._stack.aclose())
        self._runner.close()


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    made = Bench()
    made.run(made.start(tmp_path_factory.mktemp("served")))
    yield made
    made.close()


CELLS = [
    (framework, kind)
    for framework in TEMPLATES
    for kind in ("json", "stream", "ws")
    if (framework, kind) != ("django", "ws")  # it has none
]


@pytest.mark.parametrize(("framework", "kind"), CELLS)
def test_walking_away_stops_the_model_and_is_counted_under_the_template(
    bench: Bench, framework: str, kind: str
) -> None:
    async def check() -> None:
        log, since = bench.model.log, bench.model.log.opened
        name = f"{TEMPLATES[framework]}/{kind}"
        paths = [f"/{stack}/{framework}/7/{kind}" for stack in STACKS]
        headers = UPGRADE if kind == "ws" else {}
        callers = [await Caller.asks(bench.served, path, headers) for path in paths]
        await log.opened_count(since + len(STACKS))
        left = time.monotonic()
        for caller in callers:
            caller.leaves()
        await log.closed_count(since + len(STACKS))
        for call in log.calls[since:]:
            assert call.cut
            assert call.closed is not None
            assert call.closed - left <= IN_TIME
        await bench.served.books.settle({DISCONNECT: len(STACKS)}, name=name)
        await asyncio.gather(*(_answered(bench, path) for path in paths))
        await bench.served.books.settle(
            {DISCONNECT: len(STACKS), DELIVERED: len(STACKS)}, name=name
        )

    bench.run(check())


async def _answered(bench: Bench, path: str) -> None:
    path = f"{path}?{QUICK}"
    if path.endswith(f"ws?{QUICK}"):
        url = f"ws://127.0.0.1:{bench.served.port}{path}"
        async with websockets.connect(url, proxy=None) as socket:
            assert await socket.recv()
        return
    status, _, body = await (await Caller.asks(bench.served, path)).answer()
    assert status == 200
    assert body


@pytest.mark.parametrize("kind", ["json", "stream"])
@pytest.mark.parametrize("framework", TEMPLATES)
def test_the_deadline_is_answered_and_counted_under_the_template(
    bench: Bench, framework: str, kind: str
) -> None:
    async def check() -> None:
        name, since = f"{TEMPLATES[framework]}/{kind}", bench.model.log.opened
        before = bench.served.books.runs(name=name)
        stacks: tuple[str, ...] = STACKS
        if (framework, kind) == ("django", "stream"):
            # The middleware around fails at a response that is left unfinished, as it
            # must, and takes Django along before that has ended in its own way.
            stacks = ("alone", "inside")
        callers = [
            await Caller.asks(
                bench.served,
                f"/{stack}/{framework}/7/{kind}",
                {"X-Hangup-Budget": "0.5"},
            )
            for stack in stacks
        ]
        for caller in callers:
            status, headers, body = await caller.answer()
            if status == 504:
                assert headers["hangup-cause"] == "deadline"
            else:  # it had begun
                assert kind == "stream"
                assert not body.endswith(b"0\r\n\r\n")
        calls = bench.model.log.calls[since:]
        await bench.model.log.wait_for(lambda: all(call.closed for call in calls))
        assert all(call.cut for call in calls)
        expected = {**before, ("abandoned", "deadline"): len(stacks)}
        await bench.served.books.settle(expected, name=name)

    bench.run(check())


def test_django_has_ended_every_request_in_its_own_way(bench: Bench) -> None:
    """It says so to the rest of Django, which closes what the request had open."""

    async def check() -> None:
        since = bench.model.log.opened

        async def finished() -> int:
            found: int = await _asked(bench, "/finished")
            return found

        books = bench.served.books
        before, counted = await finished(), books.runs()
        for kind in (DISCONNECT, DELIVERED, ("abandoned", "deadline")):
            counted[kind] = counted.get(kind, 0) + 1
        leaving = await Caller.asks(bench.served, "/alone/django/7/json")
        late = await Caller.asks(
            bench.served, "/alone/django/7/stream", {"X-Hangup-Budget": "2"}
        )
        await bench.model.log.opened_count(since + 2)
        leaving.leaves()
        await late.answer()
        await _asked(bench, f"/alone/django/7/json?{QUICK}")
        await books.settle(counted)
        async with asyncio.timeout(10):
            while await finished() != before + 3:  # noqa: ASYNC110  another process
                await asyncio.sleep(0.05)

    bench.run(check())


async def _asked(bench: Bench, path: str) -> Any:
    return await (await Caller.asks(bench.served, path)).json()


def test_nothing_is_counted_under_another_name(bench: Bench) -> None:
    """Runs after all the others, whose runs these are."""
    names = [f"{TEMPLATES[framework]}/{kind}" for framework, kind in CELLS]
    books = bench.served.books
    counted = sum(sum(books.runs(name=name).values()) for name in names)
    assert counted == sum(books.runs().values()) > 0
    assert "never retrieved" not in bench.served.said
    assert "No response returned" not in bench.served.said
