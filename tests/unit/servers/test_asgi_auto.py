"""Without a line of code: whose run it is, and how everything is put back."""

from __future__ import annotations

import asyncio
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
from litestar import Litestar, get
from quart import Quart
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import JSONResponse
from starlette.routing import Mount, Route
from support.asgi import HTTP_DISCONNECT, Peer, body, http_scope, serve, spend
from support.ruling import use_rules

import hangup
from hangup import config
from hangup.config import Settings
from hangup.core import rollout
from hangup.otel.mending import Mending
from hangup.readers import FRAMEWORKS
from hangup.servers import _asgi_auto as auto
from hangup.servers.asgi import HangupMiddleware

if TYPE_CHECKING:
    from collections.abc import Iterator

    from starlette.requests import Request
    from support.asgi import Journal, Scope

    from hangup.core.run import Run

ENFORCE = {"route": "/ask/*", "mode": "enforce", "budget": 7}


@pytest.fixture(autouse=True)
def _installed() -> Iterator[None]:
    auto.install()
    yield
    auto.uninstall()
    rollout.use_rules(None)


class Seen:
    """What handlers saw."""

    outer: Run
    inner: Run


async def ask(_request: Request) -> JSONResponse:
    Seen.outer = spend()
    async with hangup.run(name="research") as inner:
        Seen.inner = inner
    return JSONResponse({})


def agent(*middleware: Middleware) -> Starlette:
    return Starlette(routes=[Route("/ask/{thread}", ask)], middleware=middleware)


def visit(app: Any, path: str = "/ask/7", **fields: str) -> None:
    scope = {**http_scope(path, **fields), "scheme": "http", "query_string": b""}
    assert asyncio.run(served(app, scope)).status == 200


def complete(peer: Peer) -> bool:
    last = peer.sent[-1] if peer.sent else {}
    return last.get("type") == "http.response.body" and not last.get("more_body")


async def served(app: Any, scope: Scope) -> Peer:
    """As servers do it: when the response is complete there is a disconnect."""
    peer = Peer(body())
    serving = asyncio.ensure_future(app(scope, peer.receive, peer.send))
    async with asyncio.timeout(10):
        while not (serving.done() or complete(peer)):  # noqa: ASYNC110  by hand
            await asyncio.sleep(0)
        peer.feed(HTTP_DISCONNECT)
        await serving
    return peer


def outermost(journal: Journal) -> list[tuple[str, str]]:
    return [(run.name, str(run.mode)) for run in journal.runs if run.parent is None]


def test_a_request_that_spends_is_a_run_under_its_route_and_observed(
    journal: Journal,
) -> None:
    visit(agent())
    assert outermost(journal) == [("/ask/{thread}", "observe")]
    assert journal.fates.count(("delivered",)) == 2  # and the one that code opened


def test_of_applications_in_each_other_the_outermost_has_the_run(
    journal: Journal,
) -> None:
    visit(Starlette(routes=[Mount("/in", agent())]), "/in/ask/7")
    assert len(outermost(journal)) == 1


@pytest.mark.parametrize("outside", [True, False])
def test_a_middleware_put_in_by_hand_wins_and_the_run_counts_once(
    outside: bool,  # noqa: FBT001  a parameter of the test
    journal: Journal,
) -> None:
    options: Any = {"budget": 30, "name": "mine"}
    if outside:
        visit(HangupMiddleware(agent(), **options))
    else:
        visit(agent(Middleware(HangupMiddleware, **options)))
    assert outermost(journal) == [("mine", "enforce")]
    assert Seen.outer.deadline.at - Seen.outer.started_at == pytest.approx(30, abs=1)


@pytest.mark.parametrize("outside", [True, False])
def test_a_route_that_was_switched_off_by_hand_stays_off(
    outside: bool,  # noqa: FBT001  a parameter of the test
    journal: Journal,
) -> None:
    async def nobody(_request: Request) -> JSONResponse:
        assert hangup.current_run() is None
        return JSONResponse({})

    off: Any = {"routes": {"/health": {"mode": "off"}}}
    inside = () if outside else (Middleware(HangupMiddleware, **off),)
    app: Any = Starlette(routes=[Route("/health", nobody)], middleware=inside)
    visit(HangupMiddleware(app, **off) if outside else app, "/health")
    assert journal.runs == []


def test_what_was_continued_is_said_to_be_held_once() -> None:
    """The answer carries the header of the middleware that serves, and no second."""
    app = agent(Middleware(HangupMiddleware))
    scope = http_scope("/ask/7", hangup=f't="{"ab" * 16}", l=9000, m="enforce"')
    peer = asyncio.run(serve(app, scope, body()))
    names = [name for name, _ in peer.sent[0]["headers"]]
    assert names.count(b"hangup-settle") == 1


def test_the_variable_or_a_rule_makes_it_enforce(journal: Journal) -> None:
    use_rules(ENFORCE)
    visit(agent())
    assert Seen.outer.deadline.at - Seen.outer.started_at == pytest.approx(7, abs=1)
    rollout.use_rules(None)
    config.use(Settings(mode=config.Mode.ENFORCE))
    visit(agent())
    assert [mode for _, mode in outermost(journal)] == ["enforce", "enforce"]


def test_a_run_that_code_opens_inside_enforces_as_it_would_alone() -> None:
    visit(agent())
    assert (str(Seen.outer.mode), str(Seen.inner.mode)) == ("observe", "enforce")


def test_but_not_where_somebody_said_observe() -> None:
    visit(agent(), hangup=f't="{"ab" * 16}", l=9000, m="observe"')
    assert str(Seen.inner.mode) == "observe"
    use_rules({"route": "/ask/*", "mode": "observe"})
    visit(agent())
    assert str(Seen.inner.mode) == "observe"
    rollout.use_rules(None)
    config.use(Settings(mode=config.Mode.OBSERVE))
    visit(agent())
    assert str(Seen.inner.mode) == "observe"


def test_litestar_and_quart_are_served_and_their_routes_are_names(
    journal: Journal,
) -> None:
    @get("/ask/{thread:str}")
    async def of_litestar() -> dict[str, str]:
        spend()
        return {}

    of_quart = Quart(__name__)

    @of_quart.get("/ask/<thread>")
    async def answer(thread: str) -> dict[str, str]:
        spend()
        return {}

    visit(Litestar([of_litestar]))
    visit(of_quart)
    names = [name for name, _ in outermost(journal)]
    assert names == ["/ask/{thread}", "/ask/<thread>"]


def test_taking_it_off_puts_back_what_was_there() -> None:
    ours = vars(Starlette)["__call__"]
    auto.uninstall()
    plain = vars(Starlette)["__call__"]
    assert plain is ours.__wrapped__
    auto.install()
    auto.install()
    assert vars(Starlette)["__call__"].__wrapped__ is plain


def test_only_the_frameworks_that_were_chosen(journal: Journal) -> None:
    auto.uninstall()
    config.use(config.from_environment({"HANGUP_FRAMEWORKS": "django, quart"}))
    auto.install()
    plain = Starlette(routes=[Route("/", lambda _request: JSONResponse({}))])
    visit(plain, "/")
    assert not hasattr(vars(Starlette)["__call__"], "__wrapped__")
    assert hasattr(vars(Quart)["__call__"], "__wrapped__")


@pytest.mark.parametrize(
    ("text", "expected"),
    [("none", ()), ("all", FRAMEWORKS), ("FastAPI,quart", ("fastapi", "quart"))],
)
def test_frameworks_are_chosen_by_name(text: str, expected: tuple[str, ...]) -> None:
    settings = config.from_environment({"HANGUP_FRAMEWORKS": text})
    assert settings.frameworks == expected


def test_a_framework_nobody_knows_is_an_error_that_says_which_there_are() -> None:
    with pytest.raises(hangup.ConfigError, match=r"flask.*starlette, fastapi"):
        config.from_environment({"HANGUP_FRAMEWORKS": "flask"})


def test_a_class_that_an_instrumentation_has_replaced_is_found_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As OpenTelemetry's of FastAPI does; others inherit from the real one."""
    module = ModuleType("hangup_test_framework")
    source = "class App:\n    def __call__(self): return 'theirs'\n"
    exec(source, vars(module))  # noqa: S102  a module that nobody has
    real: Any = module.App
    monkeypatch.setattr(module, "App", type("Instrumented", (real,), {}))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    mending = Mending(
        (module.__name__, "App", "__call__", lambda _call, _patch: lambda _app: "ours")
    )
    mending.install()
    assert type("Mine", (real,), {})()() == "ours"
    mending.uninstall()
    assert type("Mine", (real,), {})()() == "theirs"
