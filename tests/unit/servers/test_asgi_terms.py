"""What run a connection gets: budget, mode, name, and whose run it continues."""

from __future__ import annotations

import asyncio
import logging
import math
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry import context as otel_context
from support.asgi import Peer, body, chunk, http_scope, socket_scope, start

import hangup
from hangup import config
from hangup.config import Mode
from hangup.otel.context import INBOUND_KEY
from hangup.otel.wire import Inbound
from hangup.servers._asgi_terms import RouteSettings, Terms
from hangup.servers._common_fields import read_budget
from hangup.servers.asgi import HangupMiddleware

if TYPE_CHECKING:
    from support.asgi import Journal, ManualClock, Receive, Scope, Send

    from hangup.core.run import Run


TOKEN = "0123456789abcdef" * 2


def opened(
    scope: Scope, *, clock: ManualClock | None = None, **options: Any
) -> tuple[Run, Peer]:
    """Serve one request that spends, and return its run and what was sent."""
    runs: list[Run] = []

    async def app(_scope: Scope, receive: Receive, send: Send) -> None:
        run = hangup.current_run()
        assert run is not None
        runs.append(run)
        assert run.latent
        if "route_found" in options_:
            _scope["route"] = SimpleNamespace(path=options_["route_found"])
        run.begin_spending()
        await send(start())
        await send(chunk())

    options_ = {key: options.pop(key) for key in list(options) if key == "route_found"}

    async def test() -> Peer:
        peer = Peer(body())
        middleware = HangupMiddleware(app, **options)
        if clock is not None:
            middleware._terms = Terms(**options, clock=clock)
        await middleware(dict(scope), peer.receive, peer.send)
        return peer

    peer = asyncio.run(test())
    return runs[0], peer


def budget_of(scope: Scope, clock: ManualClock, **options: Any) -> float:
    run, _peer = opened(scope, clock=clock, **options)
    return round(run.deadline.at - run.started_at, 6)


ROUTES: dict[str, Any] = {
    "/short": {"budget": 1},
    "/live": RouteSettings(budget=None),
    "/named": {"name": "chosen", "tenant": "acme"},
    "/threads/{id}/chat": {"budget": 2},
    "/files/{rest:path}": {"budget": 3},
    "/agents/*": {"budget": 4},
    "/agents/never": {"budget": 5},
    "/ws": {"budget": 6},
}


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/", 30),
        ("/short", 1),
        ("/short/er", 30),
        ("/live", math.inf),
        ("/named", 30),
        ("/threads/7/chat", 2),
        ("/threads/7/8/chat", 30),
        ("/threads//chat", 30),
        ("/files/a/b.txt", 3),
        ("/agents/x/y", 4),
        ("/agents/never", 4),
    ],
)
def test_the_first_route_that_matches_gives_the_budget(
    clock: ManualClock, path: str, expected: float
) -> None:
    scope = http_scope(path)
    assert budget_of(scope, clock, budget=30, routes=ROUTES) == expected


def test_a_route_matches_below_the_root_path_and_in_full(clock: ManualClock) -> None:
    for path in ("/api/short", "/short"):
        scope = {**http_scope(path), "root_path": "/api"}
        assert budget_of(scope, clock, routes=ROUTES) == 1
    scope = {**http_scope("/mounted/short"), "root_path": "/mounted"}
    routes = {"/mounted/short": {"budget": 9}}
    assert budget_of(scope, clock, routes=routes) == 9


def test_a_websocket_has_a_budget_only_from_its_route(clock: ManualClock) -> None:
    assert budget_of(socket_scope("/ws"), clock, budget=30, routes=ROUTES) == 6
    assert budget_of(socket_scope("/x"), clock, budget=30, routes=ROUTES) == math.inf


def test_the_environments_budget_is_for_http_but_not_for_an_event_source(
    clock: ManualClock,
) -> None:
    config.use(config.Settings(budget=20.0))
    page = http_scope("/", accept="text/event-stream")
    assert budget_of(http_scope(), clock) == 20
    assert budget_of(page, clock) == math.inf
    assert budget_of({**page, "method": "POST"}, clock) == 20
    assert budget_of(page, clock, budget=30) == 30


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("12.5", 12.5),
        (" 3 ", 3),
        ("0.001", 0.001),
        ("30", 30),
        ("31", 30),
        ("999999999", 30),
        ("0", 30),
        ("0.0", 30),
        ("-1", 30),
        ("nan", 30),
        ("inf", 30),
        ("1e1", 30),
        ("1_0", 30),
        ("10s", 30),
        ("٣", 30),
        ("", 30),
        ("9" * 400, 30),
    ],
)
def test_the_budget_header_only_tightens(
    clock: ManualClock, text: str, expected: float
) -> None:
    scope = http_scope("/", x_hangup_budget=text)
    assert budget_of(scope, clock, budget=30) == expected


def test_the_budget_header_tightens_what_has_no_deadline(clock: ManualClock) -> None:
    assert budget_of(http_scope("/", x_hangup_budget="7"), clock) == 7
    assert budget_of(socket_scope("/x", x_hangup_budget="7"), clock) == 7


def test_the_name_of_the_budget_header_can_be_chosen(clock: ManualClock) -> None:
    scope = http_scope("/", x_hangup_budget="1", my_budget="2")
    assert budget_of(scope, clock, budget_header="My-Budget") == 2
    assert budget_of(scope, clock, budget_header="") == math.inf
    config.use(config.Settings(budget_header="my-budget"))
    assert budget_of(scope, clock) == 2


def test_a_malformed_budget_header_warns_once(
    caplog: pytest.LogCaptureFixture, clock: ManualClock
) -> None:
    terms = Terms(clock=clock)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert terms.opening(http_scope("/", x_hangup_budget="soon")) is not None
    assert len(caplog.records) == 1
    assert "soon" in caplog.text


def test_zero_is_not_a_budget() -> None:
    assert read_budget(b"0") is None
    assert read_budget(b"0.000000001") == 1e-9


@pytest.mark.parametrize(
    ("options", "found", "path", "expected"),
    [
        ({"name": "app"}, "/t/{id}", "/t/7", "app"),
        ({"name": "app", "routes": ROUTES}, "/named", "/named", "chosen"),
        ({}, "/t/{id}", "/t/7", "/t/{id}"),
        ({}, None, "/t/7", "http"),
        ({"routes": ROUTES}, None, "/threads/7/chat", "/threads/{id}/chat"),
        ({}, "", "/t/7", "http"),
    ],
)
def test_the_name_is_the_chosen_one_or_the_template_and_never_the_path(
    journal: Journal,
    options: dict[str, Any],
    found: str | None,
    path: str,
    expected: str,
) -> None:
    run, _peer = opened(http_scope(path), route_found=found, **options)
    assert run.name == expected
    assert journal.events[0] == ("started", expected)


def test_a_websocket_without_a_template_is_called_so() -> None:
    run, _peer = opened(socket_scope("/secret/7"))
    assert run.name == "websocket"


def test_tenant_and_mode_come_from_the_route_or_the_application() -> None:
    run, _peer = opened(http_scope("/named"), tenant="other", routes=ROUTES)
    assert (run.tenant, run.mode) == ("acme", Mode.ENFORCE)
    run, _peer = opened(http_scope(), tenant="other", mode="observe")
    assert (run.tenant, run.mode) == ("other", Mode.OBSERVE)
    routes = {"/": {"mode": "refuse"}}
    run, _peer = opened(http_scope(), mode="observe", routes=routes)
    assert run.mode is Mode.REFUSE
    config.use(config.Settings(mode=Mode.OBSERVE))
    run, _peer = opened(http_scope(), mode="enforce")
    assert run.mode is Mode.OBSERVE


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"budget": -1}, "budget"),
        ({"budget": math.nan}, "budget"),
        ({"mode": "enforced"}, "mode"),
        ({"routes": {"chat": {}}}, "start the pattern with '/'"),
        ({"routes": {"/chat": {"budgets": 3}}}, "budget, mode, name, tenant"),
        ({"routes": {"/chat": {"budget": -3}}}, "route budget"),
        ({"routes": {"/chat": {"mode": "on"}}}, "route mode"),
    ],
)
def test_a_wrong_setting_is_reported_where_it_is_given(
    options: dict[str, Any], named: str
) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        raise AssertionError

    with pytest.raises(hangup.ConfigError, match=named):
        HangupMiddleware(app, **options)


def test_a_request_without_a_run_opens_one_of_its_own() -> None:
    run, peer = opened(http_scope())
    assert not run.joined
    assert peer.header("hangup-settle") is None


@pytest.mark.parametrize(
    "fields",
    [
        {"hangup": f't="{TOKEN}", l=2000, m="observe"'},
        {"baggage": f"a=b,hangup.token={TOKEN},hangup.left=2000,hangup.mode=observe"},
        {"hangup": "nonsense", "baggage": f"hangup.token={TOKEN},hangup.left=2000"},
    ],
    ids=["header", "baggage", "damaged header"],
)
def test_a_run_of_another_process_is_continued(
    clock: ManualClock, fields: dict[str, str]
) -> None:
    run, peer = opened(http_scope("/", **fields), clock=clock, budget=30)
    assert run.id == TOKEN
    assert run.joined
    assert run.deadline.at == run.started_at + 2
    assert run.mode is (Mode.ENFORCE if len(fields) == 2 else Mode.OBSERVE)
    assert peer.header("hangup-settle") == "1"


def test_a_baggage_in_several_fields_is_one(clock: ManualClock) -> None:
    scope = http_scope()
    scope["headers"] = [
        (b"baggage", f"hangup.token={TOKEN}".encode()),
        (b"baggage", b"hangup.left=1500"),
    ]
    run, _peer = opened(scope, clock=clock)
    assert (run.id, run.deadline.at - run.started_at) == (TOKEN, 1.5)


def test_what_an_instrumentation_has_extracted_wins(clock: ManualClock) -> None:
    extracted = Inbound(TOKEN, left=3.0)
    token = otel_context.attach(otel_context.set_value(INBOUND_KEY, extracted))
    try:
        scope = http_scope("/", hangup=f't="{"f" * 32}", l=1000')
        run, _peer = opened(scope, clock=clock)
    finally:
        otel_context.detach(token)
    assert run.id == TOKEN
    assert run.deadline.at == run.started_at + 3


def test_an_inbound_deadline_never_extends_and_is_capped(clock: ManualClock) -> None:
    scope = http_scope("/", hangup=f't="{TOKEN}", l=50000')
    assert budget_of(scope, clock, budget=30) == 30
    assert budget_of(scope, clock) == 50
    config.use(config.Settings(max_budget=10.0))
    assert budget_of(scope, clock) == 10


def test_of_two_modes_the_less_intrusive_wins() -> None:
    scope = http_scope("/", hangup=f't="{TOKEN}", m="enforce"')
    run, _peer = opened(scope, mode="observe")
    assert run.mode is Mode.OBSERVE


def test_nothing_that_comes_in_switches_measuring_off(journal: Journal) -> None:
    scope = http_scope("/", hangup=f't="{TOKEN}", m="off"')
    run, _peer = opened(scope)
    assert (run.id, run.mode, run.latent) == (TOKEN, Mode.OBSERVE, False)
    assert journal.fates == [("delivered",)]
    assert Terms(mode="off").opening(scope) is None


def test_work_for_a_user_who_had_left_before_it_came_is_abandoned_from_the_start(
    journal: Journal, clock: ManualClock
) -> None:
    scope = http_scope("/", hangup=f't="{TOKEN}", m="observe", g=250')
    run, peer = opened(scope, clock=clock)
    assert journal.fates == [("abandoned", "disconnect")]
    assert run.abandonment is not None
    assert run.abandonment.at == run.started_at
    assert peer.sent[1:] == [chunk()]
