"""aiohttp.web: what passes through, what is an outcome, and what stands around us."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
from aiohttp import web
from support.aiohttp_served import AiohttpServed
from support.asgi import spend
from support.core import in_loop

import hangup
from hangup.core.current import position
from hangup.servers.aiohttp import setup

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from support.asgi import Journal

    Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

DONE = [("delivered",)]
FAILED = [("abandoned", "failed")]
TOKEN = "0123456789abcdef" * 2


async def spending(_request: web.Request) -> web.StreamResponse:
    spend()
    return web.Response(text="spent")


async def plain(_request: web.Request) -> web.StreamResponse:
    return web.Response(text="plain")


@contextlib.asynccontextmanager
async def client(
    handler: Handler,
    *,
    around: Callable[[web.Application], None] | None = None,
    **terms: Any,
) -> AsyncIterator[aiohttp.ClientSession]:
    """A client of a server whose every path is served by ``handler``."""
    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", handler)
    setup(app, **terms)
    if around is not None:
        around(app)
    async with (
        AiohttpServed(app) as served,
        aiohttp.ClientSession(served.url) as session,
    ):
        yield session


def answers(
    handler: Handler, path: str = "/", headers: Any = None, **options: Any
) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of one answer."""

    async def ask() -> tuple[int, dict[str, str], bytes]:
        async with (
            client(handler, **options) as session,
            session.get(path, headers=headers) as response,
        ):
            fields = {name.lower(): value for name, value in response.headers.items()}
            return response.status, fields, await response.read()

    return asyncio.run(ask())


def test_a_request_that_spends_nothing_is_passed_through(journal: Journal) -> None:
    assert answers(plain)[::2] == (200, b"plain")
    assert journal.events == []


def test_mode_off_is_not_there_at_all() -> None:
    async def handler(_request: web.Request) -> web.StreamResponse:
        assert position() is None
        return web.Response(text="off")

    assert answers(handler, mode="off")[2] == b"off"


def raising(error: Exception) -> Handler:
    async def handler(_request: web.Request) -> web.StreamResponse:
        spend()
        raise error

    return handler


async def broken(_request: web.Request) -> web.StreamResponse:
    spend()
    return web.Response(status=502, text="upstream")


async def lazy(_request: web.Request) -> web.StreamResponse:
    async def pieces() -> AsyncIterator[bytes]:
        yield b"a"
        spend()
        yield b"b"

    return web.Response(body=pieces())


@pytest.mark.parametrize(
    ("handler", "status", "fates"),
    [
        (spending, 200, DONE),
        (broken, 502, FAILED),
        (lazy, 200, DONE),
        (raising(web.HTTPFound("/elsewhere")), 302, DONE),
        (raising(web.HTTPNotFound()), 404, DONE),
        (raising(web.HTTPServiceUnavailable()), 503, FAILED),
        (raising(LookupError("mine")), 500, FAILED),
    ],
)
def test_the_end_of_a_response_is_an_outcome(
    handler: Handler, status: int, fates: Any, journal: Journal
) -> None:
    async def ask() -> int:
        async with (
            client(handler) as session,
            session.get("/", allow_redirects=False) as response,
        ):
            await response.read()
            return response.status

    assert asyncio.run(ask()) == status
    assert journal.fates == fates


def test_a_body_that_is_made_while_it_is_sent_is_in_the_run(journal: Journal) -> None:
    assert answers(lazy)[2] == b"ab"
    assert journal.fates == DONE


TOLD = [("killed", 409), ("superseded", 409), ("shutdown", 503), ("deadline", 504)]


@pytest.mark.parametrize(("cause", "status"), TOLD)
@pytest.mark.parametrize("mode", ["enforce", "refuse"])
def test_a_refused_call_is_answered_with_the_cause(
    cause: str, status: int, mode: str, journal: Journal
) -> None:
    async def handler(_request: web.Request) -> web.StreamResponse:
        spend().cancel(cause)
        spend()
        raise AssertionError("a stopped run went on")

    found, headers, body = answers(handler, mode=mode)
    assert (found, headers["hangup-cause"]) == (status, cause)
    assert json.loads(body)["error"] == cause
    assert ("retry-after" in headers) == (cause == "shutdown")
    assert journal.fates == [("abandoned", cause)]


def test_the_500_of_a_refused_call_becomes_the_cause(journal: Journal) -> None:
    async def handler(_request: web.Request) -> web.StreamResponse:
        spend().cancel("superseded")
        with pytest.raises(hangup.Stop):
            spend()
        return web.Response(status=500, text="oops")

    status, headers, body = answers(handler, mode="refuse")
    assert (status, headers["hangup-cause"]) == (409, "superseded")
    assert b"oops" not in body


def test_a_stopped_run_begins_no_response_of_its_own(journal: Journal) -> None:
    """Whoever swallows the stop cannot begin to answer on top of our answer."""
    seen: list[BaseException] = []

    async def handler(request: web.Request) -> web.StreamResponse:
        run = spend()
        run.cancel("killed")
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(10)
        response = web.StreamResponse()
        try:
            await response.prepare(request)
        except BaseException as error:
            seen.append(error)
            raise
        raise AssertionError("it began")

    status, headers, _ = answers(handler)
    assert (status, headers["hangup-cause"]) == (409, "killed")
    assert [type(error) for error in seen] == [hangup.Stop]


def test_a_middleware_around_us_may_still_change_the_response(journal: Journal) -> None:
    @web.middleware
    async def stamping(request: web.Request, handler: Handler) -> web.StreamResponse:
        response = await handler(request)
        assert not response.prepared
        response.headers["X-Stamp"] = "1"
        return response

    status, headers, body = answers(
        spending, around=lambda app: app.middlewares.insert(0, stamping)
    )
    assert (status, headers["x-stamp"], body) == (200, "1", b"spent")
    assert journal.fates == DONE


def test_one_inside_another_does_nothing_and_says_so(
    journal: Journal, caplog: pytest.LogCaptureFixture
) -> None:
    @in_loop
    async def check() -> None:
        inner = web.Application()
        inner.router.add_get("/x", spending)
        setup(inner, name="inner")
        outer = web.Application()
        setup(outer, name="outer")
        outer.add_subapp("/sub", inner)
        async with (
            AiohttpServed(outer) as served,
            aiohttp.ClientSession(served.url) as session,
        ):
            for _ in range(2):
                async with session.get("/sub/x") as response:
                    assert await response.text() == "spent"

    with caplog.at_level(logging.WARNING):
        check()
    assert len(caplog.records) == 1
    assert journal.events == [("started", "outer"), ("delivered", "outer")] * 2


def test_a_run_is_named_by_its_resource_or_its_route(journal: Journal) -> None:
    answers(spending, "/a/b")
    answers(spending, "/chat/7", routes={"/chat/{id}": {"name": "chat"}})
    assert [run.name for run in journal.runs] == ["/{tail}", "chat"]


def test_the_budget_is_for_requests_and_a_header_tightens_it(journal: Journal) -> None:
    answers(spending, budget=30)
    answers(spending, headers={"X-Hangup-Budget": "2.5"}, budget=30)
    answers(spending, headers={"Accept": "text/event-stream"})
    wide, tight, stream = (run.deadline.at - run.started_at for run in journal.runs)
    assert 29 < wide <= 30
    assert 2 < tight <= 2.5
    assert stream == float("inf")


def test_a_run_of_another_process_is_continued_and_says_so(journal: Journal) -> None:
    header = {"Hangup": f't="{TOKEN}", l=5000, m="observe"'}
    _, headers, _ = answers(spending, headers=header)
    [run] = journal.runs
    assert (run.id, run.joined, run.mode) == (TOKEN, True, "observe")
    assert headers["hangup-settle"] == "1"


def test_notices_are_taken_and_others_are_the_applications() -> None:
    path, mark = "/.well-known/hangup", {"Hangup-Settle": "1"}
    entry = {"token": TOKEN, "outcome": "abandoned", "cause": "killed", "ago_ms": 1}
    body = json.dumps({"settlements": [entry]}).encode()

    async def ask() -> list[int]:
        async with client(plain) as session:
            found = []
            for data, headers in (
                (body, mark),
                (b"nonsense", mark),
                (bytes(70_000), mark),
                (body, {}),
            ):
                async with session.post(path, data=data, headers=headers) as response:
                    found.append(response.status)
            async with session.put(path, data=body, headers=mark) as response:
                return [*found, response.status]

    assert asyncio.run(ask()) == [204, 400, 400, 200, 200]


def test_another_application_that_still_runs_keeps_its_runs(journal: Journal) -> None:
    """The last one to end stops what is left of the loop, no one before."""

    @in_loop
    async def check() -> None:
        first, second = web.Application(), web.Application()
        setup(first)
        setup(second)
        working = asyncio.Event()

        async def job() -> None:
            with contextlib.suppress(hangup.RunAbandoned):
                async with hangup.run(name="job"):
                    working.set()
                    await asyncio.sleep(60)

        async with AiohttpServed(first):
            task = asyncio.create_task(job())
            await working.wait()
            async with AiohttpServed(second):
                pass
            assert journal.fates == []
        await task

    check()
    assert journal.fates == [("abandoned", "shutdown")]
