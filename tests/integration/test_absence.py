"""Over real sockets: clients that leave under grace or finish, and come back."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from support.agents import installed, plain_bhm, spending
from support.asgi import Journal
from support.servers import Served, get

import hangup
from hangup.core import registry
from hangup.core.registry import RunObserver
from hangup.servers.asgi import HangupMiddleware

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from starlette.requests import Request

    from hangup.core.run import Run

pytestmark = pytest.mark.timeout(60)

_PATIENCE = 10.0


@pytest.fixture(scope="module", autouse=True)
def _installed() -> Iterator[None]:
    with installed():
        yield


@pytest.fixture
def journal() -> Iterator[Journal]:
    observer = Journal()
    registry.add_observer(observer)
    yield observer
    registry.remove_observer(observer)


class Ended(RunObserver):
    """Says when the first run of the test has left its scope."""

    def __init__(self) -> None:
        self.closed_ = threading.Event()

    def closed(self, run: Run) -> None:
        self.closed_.set()


@pytest.fixture
def ended() -> Iterator[threading.Event]:
    observer = Ended()
    registry.add_observer(observer)
    yield observer.closed_
    registry.remove_observer(observer)


class Desk:
    """An agent at ``/json`` and ``/stream``, and the way back to it at ``/back``."""

    def __init__(self) -> None:
        self.ids: list[str] = []
        self.called = threading.Event()
        self.go = threading.Event()
        self.calls = 0
        self.stored: str | None = None
        self.store = False

    async def work(self) -> str:
        run = hangup.current_run()
        assert run is not None
        for _ in range(3):
            with spending():
                self.calls += 1
                self.ids.append(run.id)
                if self.calls == 2:
                    self.called.set()
                    while not self.go.is_set():  # noqa: ASYNC110  set by a thread
                        await asyncio.sleep(0.002)
        if self.store:
            self.stored = "answer"
            assert run.deliver()
        return "answer"

    async def as_json(self, _request: Request) -> Response:
        return JSONResponse({"answer": await self.work()})

    async def as_stream(self, _request: Request) -> Response:
        async def tokens() -> AsyncIterator[str]:
            yield "one "
            yield await self.work()

        return StreamingResponse(tokens())

    async def back(self, request: Request) -> Response:
        run = hangup.find_run(request.query_params["run"])
        return JSONResponse({"back": run is not None and run.reattach()})

    def starlette(self, *middleware: Middleware) -> Starlette:
        routes = [
            Route("/json", self.as_json),
            Route("/stream", self.as_stream),
            Route("/back", self.back),
        ]
        return Starlette(routes=routes, middleware=middleware)

    def app(self, *middleware: Middleware, **options: Any) -> HangupMiddleware:
        return HangupMiddleware(self.starlette(*middleware), **options)


def leave(server: Served, desk: Desk, path: str) -> float:
    """Ask, leave inside the second call, and wait until the server knows of it."""
    sock = get(server, path)
    assert desk.called.wait(_PATIENCE)
    left = time.monotonic()
    sock.close()
    run = hangup.find_run(desk.ids[0])
    assert run is not None

    async def noticed() -> None:
        while run.caller != "gone":  # noqa: ASYNC110  no such event
            await asyncio.sleep(0.002)

    server.submit(noticed()).result(_PATIENCE)
    return left


def come_back(server: Served, desk: Desk) -> bool:
    answer = httpx.get(f"{server.url}/back", params={"run": desk.ids[0]}, timeout=10)
    back: bool = answer.json()["back"]
    return back


PATHS = ["/json", "/stream"]
AROUND = [[], [plain_bhm()]]


@pytest.mark.parametrize("middleware", AROUND, ids=["bare", "bhm inside"])
@pytest.mark.parametrize("path", PATHS)
def test_a_client_that_comes_back_in_time_never_left(
    journal: Journal, ended: threading.Event, path: str, middleware: list[Middleware]
) -> None:
    desk = Desk()
    app = desk.app(*middleware, on_disconnect="grace", grace=30)
    with Served(app) as server:
        leave(server, desk, path)
        assert come_back(server, desk)
        desk.go.set()
        assert ended.wait(_PATIENCE)
        assert not come_back(server, desk)
        server.idle()
    assert desk.calls == 3
    assert journal.fates == [("delivered",)]
    assert journal.runs[0].caller == "connected"


@pytest.mark.parametrize("path", PATHS)
def test_a_client_that_does_not_is_gone_since_it_left(
    journal: Journal, ended: threading.Event, path: str
) -> None:
    desk = Desk()
    with Served(desk.app(on_disconnect="grace", grace=0.5)) as server:
        left = leave(server, desk, path)
        assert not ended.is_set()
        assert ended.wait(_PATIENCE)
        assert time.monotonic() - left < 3
        assert not come_back(server, desk)
        server.idle()
    assert desk.calls == 2
    assert journal.fates == [("abandoned", "disconnect")]
    abandonment = journal.runs[0].abandonment
    assert abandonment is not None
    assert 0 <= abandonment.at - left < 0.4
    assert abandonment.noticed_at - abandonment.at == pytest.approx(0.5)


@pytest.mark.parametrize("path", PATHS)
def test_an_answer_that_is_ready_before_anybody_is_back_reached_nobody(
    journal: Journal, ended: threading.Event, path: str
) -> None:
    desk = Desk()
    with Served(desk.app(on_disconnect="grace", grace=30)) as server:
        left = leave(server, desk, path)
        desk.go.set()
        assert ended.wait(_PATIENCE)
        server.idle()
    assert desk.calls == 3
    assert journal.fates == [("abandoned", "disconnect")]
    abandonment = journal.runs[0].abandonment
    assert abandonment is not None
    assert 0 <= abandonment.at - left < 1


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("meant", ["grace", "finish"])
def test_a_result_that_was_stored_is_delivered_although_nobody_is_there(
    journal: Journal, ended: threading.Event, path: str, meant: str
) -> None:
    desk = Desk()
    desk.store = True
    with Served(desk.app(on_disconnect=meant, grace=30)) as server:
        leave(server, desk, path)
        desk.go.set()
        assert ended.wait(_PATIENCE)
        server.idle()
    assert desk.stored == "answer"
    assert journal.fates == [("delivered",)]
    assert journal.runs[0].caller == "gone"


@pytest.mark.parametrize("middleware", AROUND, ids=["bare", "bhm inside"])
@pytest.mark.parametrize("path", PATHS)
def test_finish_finishes(
    journal: Journal, ended: threading.Event, path: str, middleware: list[Middleware]
) -> None:
    desk = Desk()
    with Served(desk.app(*middleware, on_disconnect="finish")) as server:
        leave(server, desk, path)
        desk.go.set()
        assert ended.wait(_PATIENCE)
        server.idle()
    assert desk.calls == 3
    assert journal.fates == [("delivered",)]
    assert journal.runs[0].caller == "gone"


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("back", [False, True])
def test_a_middleware_around_changes_nothing(
    journal: Journal,
    ended: threading.Event,
    path: str,
    back: bool,  # noqa: FBT001  parametrized
) -> None:
    desk = Desk()
    around = desk.starlette(
        plain_bhm(), Middleware(HangupMiddleware, on_disconnect="grace", grace=30)
    )
    with Served(around) as server:
        leave(server, desk, path)
        if back:
            assert come_back(server, desk)
        desk.go.set()
        assert ended.wait(_PATIENCE)
        server.idle()
    assert desk.calls == 3
    assert journal.fates == [("delivered",) if back else ("abandoned", "disconnect")]


def test_a_result_stored_before_the_client_leaves_is_delivered(
    journal: Journal,
) -> None:
    stored, left, spent = threading.Event(), threading.Event(), threading.Event()

    async def agent(_request: Request) -> Response:
        with spending():
            pass
        run = hangup.current_run()
        assert run is not None
        assert run.deliver()
        stored.set()
        while not left.is_set():  # noqa: ASYNC110  set by a thread
            await asyncio.sleep(0.002)
        with spending():  # nobody's business any more
            spent.set()
        return JSONResponse({})

    app = Starlette(routes=[Route("/", agent)])
    with Served(HangupMiddleware(app)) as server:  # abandon
        sock = get(server, "/")
        assert stored.wait(_PATIENCE)
        sock.close()
        server.gone()
        left.set()
        assert spent.wait(_PATIENCE)
        server.idle()
    assert journal.fates == [("delivered",)]
    assert journal.runs[0].caller == "connected"
