"""Under a real uvicorn the client that left, or ran out of time, stops the agent."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest
import websockets.sync.client
from fastapi import BackgroundTasks, FastAPI
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route, WebSocketRoute
from support.agents import ORDERS, agent_app, ask, installed, plain_bhm, spending
from support.asgi import Journal
from support.servers import Served, ServedProcess, SilentModel, get, read_all

import hangup
from hangup.core import registry
from hangup.servers.asgi import HangupMiddleware

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

    from starlette.requests import Request
    from starlette.websockets import WebSocket
    from support.asgi import Message, Scope

    Receive = Callable[[], Awaitable[Message]]
    Send = Callable[[Message], Awaitable[None]]

pytestmark = pytest.mark.timeout(60)

HTTP = ["httptools", "h11"]


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


# Deadlines


@pytest.mark.parametrize("http", HTTP)
def test_the_deadline_answers_504_and_closes_the_model_call(
    journal: Journal, http: str
) -> None:
    with SilentModel() as model:

        async def agent(request: Request) -> Response:
            await ask(model)
            return JSONResponse({})

        app = Starlette(routes=[Route("/agent/{id}", agent)])
        with Served(HangupMiddleware(app, budget=1.0), http=http) as server:
            began = time.monotonic()
            answer = httpx.get(f"{server.url}/agent/7", timeout=10)
            elapsed = time.monotonic() - began
            assert answer.status_code == 504
            assert answer.headers["hangup-cause"] == "deadline"
            assert answer.json()["error"] == "deadline"
            assert 0.95 < elapsed < 2.5
            model.wait_closed(1)
            assert model.closed[0] - began < 2.5
            # The connection is as good as before.
            assert httpx.get(f"{server.url}/none").status_code == 404
            server.idle()
    assert journal.events == [
        ("started", "/agent/{id}"),
        ("abandoned", "/agent/{id}", "deadline"),
    ]


@pytest.mark.parametrize("mode", ["", "observe", "off"])
def test_a_process_obeys_the_ceiling_of_its_environment(mode: str) -> None:
    tests = Path(__file__).parents[1]
    environment = {**os.environ, "HANGUP_MODE": mode}
    with ServedProcess("support.apps:app", str(tests), environment) as server:
        quick = httpx.get(f"{server.url}/agent?seconds=0", timeout=10)
        assert quick.json() == {"answer": 42}
        slow = httpx.get(f"{server.url}/agent?seconds=1", timeout=10)
        assert slow.status_code == (200 if mode else 504)


@pytest.mark.parametrize("mode", ["observe", "enforce"])
def test_twenty_runs_that_finish_two_seconds_past_their_budget(
    journal: Journal, mode: str
) -> None:
    budget = 0.3

    async def agent(request: Request) -> Response:
        with spending():
            await asyncio.sleep(budget + 2)
        return JSONResponse({"answer": 42})

    app = Starlette(routes=[Route("/agent", agent)])
    with (
        Served(HangupMiddleware(app, budget=budget, mode=mode)) as server,
        ThreadPoolExecutor(20) as pool,
    ):
        calls = [
            pool.submit(httpx.get, f"{server.url}/agent", timeout=30) for _ in range(20)
        ]
        answers = [call.result() for call in calls]
        server.idle()
    assert {run.caller for run in journal.runs} == {"connected"}
    if mode == "observe":
        assert [answer.json() for answer in answers] == [{"answer": 42}] * 20
        assert journal.fates == [("delivered",)] * 20
        late = [(run.delivered_at or 0) - run.deadline.at for run in journal.runs]
        assert min(late) > 1
    else:
        assert [answer.status_code for answer in answers] == [504] * 20
        assert journal.fates == [("abandoned", "deadline")] * 20


@pytest.mark.parametrize("http", HTTP)
def test_after_the_first_byte_the_deadline_closes_the_connection_unfinished(
    journal: Journal, http: str
) -> None:
    async def agent(request: Request) -> Response:
        async def tokens() -> AsyncIterator[str]:
            yield "one "
            with spending():
                await asyncio.sleep(60)
            yield "two "

        return StreamingResponse(tokens())

    app = Starlette(routes=[Route("/agent", agent)])
    with Served(HangupMiddleware(app, budget=1.0), http=http) as server:
        with get(server, "/agent") as sock:
            data = read_all(sock)
        assert data.startswith(b"HTTP/1.1 200")
        assert b"one " in data
        assert b"two " not in data
        assert not data.endswith(b"0\r\n\r\n"), "ended cleanly"
        with pytest.raises(httpx.RemoteProtocolError):
            httpx.get(f"{server.url}/agent", timeout=10)
        server.idle()
    assert journal.fates == [("abandoned", "deadline")] * 2


# Clients that leave


def leave(server: Served, model: SilentModel, path: str) -> float:
    """Ask, leave once the model is called; return when that was."""
    sock = get(server, path)
    model.wait_opened(len(model.closed) + 1)
    left = time.monotonic()
    sock.close()
    return left


@pytest.mark.parametrize("http", HTTP)
@pytest.mark.parametrize("order", ORDERS)
def test_a1_bhm_hides_disconnect(journal: Journal, order: str, http: str) -> None:
    with SilentModel() as model:
        app = agent_app(model, *ORDERS[order]())
        with Served(app, http=http) as server:
            left = leave(server, model, "/json")
            model.wait_closed(1)
            assert model.closed[0] - left < 1
            server.idle()
    assert journal.events == [
        ("started", "/json"),
        ("abandoned", "/json", "disconnect"),
    ]


@pytest.mark.parametrize("order", ORDERS)
def test_a2_nonstreaming_handler_runs_on(journal: Journal, order: str) -> None:
    with SilentModel() as model:
        app = agent_app(model, *ORDERS[order]())
        with Served(app) as server:
            for number, path in enumerate(("/json", "/stream")):
                left = leave(server, model, path)
                model.wait_closed(number + 1)
                assert model.closed[number] - left < 1
            server.idle()
    assert journal.fates == [("abandoned", "disconnect")] * 2


@pytest.mark.parametrize("around", [[], [plain_bhm()]], ids=["bare", "bhm around"])
def test_the_applications_own_poll_sees_the_client_leave(
    journal: Journal, around: list[Middleware]
) -> None:
    came, seen = threading.Event(), threading.Event()

    async def agent(request: Request) -> Response:
        with spending():
            came.set()
            while not await request.is_disconnected():  # noqa: ASYNC110  under test
                await asyncio.sleep(0.005)
            seen.set()
        return JSONResponse({})

    # In observe nothing stops the handler, so that only its poll can.
    ours = Middleware(HangupMiddleware, mode="observe")
    app = Starlette(routes=[Route("/", agent)], middleware=[*around, ours])
    with Served(app) as server:
        sock = get(server, "/")
        assert came.wait(10)
        sock.close()
        assert seen.wait(10)
        server.idle()
    assert journal.fates == [("abandoned", "disconnect")]


def test_a_sync_endpoint_is_answered_at_the_deadline_and_refused_after_it(
    journal: Journal,
) -> None:
    refused: list[BaseException] = []
    answered, ended = threading.Event(), threading.Event()

    def agent(_request: Request) -> Response:
        try:
            with spending():
                answered.wait(10)
            with spending():
                refused.append(AssertionError("it was let through"))
        except BaseException as error:
            refused.append(error)
            raise
        finally:
            ended.set()
        return JSONResponse({})

    app = Starlette(routes=[Route("/", agent)])
    with Served(HangupMiddleware(app, budget=1.0)) as server:
        began = time.monotonic()
        answer = httpx.get(server.url, timeout=10)
        assert answer.status_code == 504
        assert time.monotonic() - began < 2.5
        answered.set()
        assert ended.wait(10)
        server.idle()
    assert [type(error) for error in refused] == [hangup.DeadlineExceeded]
    assert journal.fates == [("abandoned", "deadline")]


@pytest.mark.parametrize("http", HTTP)
def test_a_head_request_gets_the_answer_without_its_body(http: str) -> None:
    async def agent(_request: Request) -> Response:
        with spending():
            await asyncio.sleep(60)
        raise AssertionError

    app = Starlette(routes=[Route("/", agent)])
    with Served(HangupMiddleware(app, budget=0.2), http=http) as server:
        with httpx.Client(timeout=10) as client:
            for _ in range(2):  # on one connection
                answer = client.head(server.url)
                assert answer.status_code == 504
                assert answer.content == b""
        server.idle()


def test_a_client_that_leaves_while_its_body_was_small_is_seen(
    journal: Journal,
) -> None:
    with SilentModel() as model:

        async def agent(scope: Scope, receive: Receive, send: Send) -> None:
            await ask(model)  # and never reads the body

        with Served(HangupMiddleware(agent), lifespan="off") as server:
            sock = server.connect()
            sock.sendall(
                b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello"
            )
            model.wait_opened(1)
            sock.close()
            model.wait_closed(1)
            server.idle()
    assert journal.fates == [("abandoned", "disconnect")]


@pytest.mark.parametrize("order", ORDERS)
def test_a_stopped_stream_is_not_ended_cleanly_whatever_stands_around(
    order: str,
) -> None:
    with SilentModel() as model:
        app = agent_app(model, *ORDERS[order]())
        with Served(app) as server:
            with server.connect() as sock:
                sock.sendall(
                    b"GET /stream HTTP/1.1\r\nHost: x\r\nX-Hangup-Budget: 1.0\r\n\r\n"
                )
                data = read_all(sock)
            assert b"one " in data
            assert not data.endswith(b"0\r\n\r\n"), "ended cleanly"
            server.idle()


def test_a8_background_work_must_live(journal: Journal) -> None:
    finished = threading.Event()
    app = FastAPI()

    async def summarise() -> None:
        await asyncio.sleep(1)
        with spending():
            finished.set()

    @app.get("/agent")
    async def agent(tasks: BackgroundTasks) -> dict[str, int]:
        with spending():
            tasks.add_task(summarise)
        return {"answer": 42}

    app.add_middleware(HangupMiddleware, budget=0.5)
    with Served(app) as server:
        sock = get(server, "/agent")
        assert b"200 OK" in sock.recv(65536)
        sock.close()
        assert finished.wait(10)
        server.idle()
    assert journal.fates == [("delivered",)]


def test_a9_websocket_nobody_receives(journal: Journal) -> None:
    with SilentModel() as model:

        async def agent(socket: WebSocket) -> None:
            await socket.accept()
            if socket.query_params.get("echo"):
                with spending():
                    pass
                await asyncio.sleep(0.1)
                await socket.send_text(await socket.receive_text())
                return
            await ask(model)
            await socket.send_text("answer")

        app = Starlette(routes=[WebSocketRoute("/ws", agent)])
        with Served(HangupMiddleware(app)) as server:
            url = server.url.replace("http", "ws") + "/ws"
            with websockets.sync.client.connect(url):
                model.wait_opened(1)
                left = time.monotonic()
            model.wait_closed(1)
            assert model.closed[0] - left < 1
            with websockets.sync.client.connect(f"{url}?echo=1") as other:
                other.send("not eaten")
                assert other.recv(10) == "not eaten"
            server.idle()
    assert journal.fates == [("abandoned", "disconnect"), ("delivered",)]


def test_a_stopped_websocket_is_closed_with_its_cause(journal: Journal) -> None:
    async def agent(socket: WebSocket) -> None:
        await socket.accept()
        with spending():
            await asyncio.sleep(60)

    app = Starlette(routes=[WebSocketRoute("/ws", agent)])
    app_ = HangupMiddleware(app, routes={"/ws": {"budget": 0.3}})
    with Served(app_) as server:
        url = server.url.replace("http", "ws") + "/ws"
        with websockets.sync.client.connect(url) as socket_:
            with pytest.raises(websockets.ConnectionClosed):
                socket_.recv(10)
            assert (socket_.close_code, socket_.close_reason) == (4504, "deadline")
        server.idle()
    assert journal.fates == [("abandoned", "deadline")]
