"""None of our keys reaches a host off the allow-list, over real sockets and clients.

Both httpx generations, both ways of calling, with the real HTTP instrumentation
installed before hangup, after it, or not at all. The outside host is a real server too:
only its name, ``outside.example``, is made to resolve to loopback.
"""

from __future__ import annotations

import asyncio
import socket
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry import baggage, context, propagate
from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.instrumentation.httpx import (
    HTTPX2ClientInstrumentor,
    HTTPXClientInstrumentor,
)
from opentelemetry.propagators.composite import CompositePropagator
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from support.wire import OUTSIDE, LoggedServer, logged_server, resolving_outside

from hangup import clients, config
from hangup.clients.settle import courier
from hangup.config import Mode
from hangup.core import guard, registry
from hangup.core.scope import RunScope
from hangup.otel import notices, propagator, settlement, wire

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

STACKS = ["httpx", "httpx2"]
INSTRUMENTED = ["before hangup", "after hangup", "sampled out", "not at all"]


def _sync(module: Any, url: str, **options: Any) -> Any:
    with module.Client(follow_redirects=True) as client:
        return client.get(url, **options)


def _async(module: Any, url: str, **options: Any) -> Any:
    async def fetch() -> Any:
        async with module.AsyncClient(follow_redirects=True) as client:
            return await client.get(url, **options)

    return asyncio.run(fetch())


@pytest.fixture(params=[_sync, _async], ids=["sync", "async"])
def way(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture(params=STACKS)
def fetch(request: pytest.FixtureRequest, way: Any) -> Callable[..., Any]:
    module = import_module(request.param)
    return lambda url, **options: way(module, url, **options)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[LoggedServer]:
    resolving_outside(monkeypatch)
    with logged_server() as server:
        yield server


def _instrument_http(sampler: Any = None) -> None:
    provider = TracerProvider(sampler=sampler)
    for instrumentor in (HTTPXClientInstrumentor(), HTTPX2ClientInstrumentor()):
        instrumentor.instrument(tracer_provider=provider)


def _uninstrument_http() -> None:
    for instrumentor in (HTTPXClientInstrumentor(), HTTPX2ClientInstrumentor()):
        if instrumentor.is_instrumented_by_opentelemetry:
            instrumentor.uninstrument()


@pytest.fixture
def hangup() -> Iterator[None]:
    before = propagate.get_global_textmap()
    propagate.set_global_textmap(
        CompositePropagator([TraceContextTextMapPropagator(), W3CBaggagePropagator()])
    )
    propagator.install()
    clients.install()
    registry.add_observer(settlement.observer())
    yield
    registry.remove_observer(settlement.observer())
    clients.uninstall()
    propagator.uninstall()
    propagate.set_global_textmap(before)


@pytest.fixture(params=INSTRUMENTED)
def instrumented(request: pytest.FixtureRequest) -> Iterator[str]:
    """Install hangup and the HTTP instrumentation in one of the possible orders."""
    order: str = request.param
    if order == "before hangup":
        _instrument_http()
    request.getfixturevalue("hangup")
    if order == "after hangup":
        _instrument_http()
    if order == "sampled out":
        _instrument_http(ALWAYS_OFF)
    yield order
    _uninstrument_http()


def a_run(**options: Any) -> RunScope:
    return RunScope(30.0, name="test", **options)


def _ours(headers: dict[str, str]) -> str:
    """Everything of ours in the headers, as one text."""
    return " ".join(
        f"{key}={value}" for key, value in headers.items() if "hangup" in key + value
    )


def test_an_inside_host_gets_the_run(
    fetch: Callable[..., Any], server: LoggedServer, instrumented: str
) -> None:
    with a_run() as run:
        fetch(server.url("/in"))
    headers = server.headers_of("/in")
    sent = wire.decode_header(headers["hangup"])
    assert sent is not None
    assert sent.token == run.id
    assert sent.mode is Mode.ENFORCE
    assert sent.left is not None
    assert 25 < sent.left <= 30
    if instrumented.endswith("hangup"):
        entries = baggage.get_all(W3CBaggagePropagator().extract(headers))
        assert wire.from_baggage(entries) is not None


@pytest.mark.usefixtures("instrumented")
def test_an_outside_host_gets_nothing_of_ours_and_all_of_the_users(
    fetch: Callable[..., Any], server: LoggedServer
) -> None:
    token = context.attach(baggage.set_baggage("user", "u1"))
    try:
        with a_run():
            fetch(server.url("/out", OUTSIDE), headers={"X-Own": "mine"})
            fetch(server.url("/own", OUTSIDE), headers={"baggage": "own=1"})
    finally:
        context.detach(token)
    headers = server.headers_of("/out")
    assert _ours(headers) == ""
    assert headers["x-own"] == "mine"
    assert server.headers_of("/own")["baggage"] in ("own=1", "user=u1")


@pytest.mark.usefixtures("instrumented")
def test_a_redirect_to_an_outside_host_takes_nothing_of_ours_along(
    fetch: Callable[..., Any], server: LoggedServer
) -> None:
    server.redirects["/in"] = server.url("/out", OUTSIDE)
    server.redirects["/out"] = server.url("/back")
    with a_run() as run:
        answer = fetch(server.url("/in"))
    assert answer.status_code == 200
    assert [path for path, *_ in server.requests] == ["/in", "/out", "/back"]
    assert run.id in _ours(server.headers_of("/in"))
    assert _ours(server.headers_of("/out")) == ""
    assert run.id in _ours(server.headers_of("/back"))


@pytest.mark.usefixtures("instrumented")
def test_headers_that_a_proxy_forwards_are_stripped_for_outside_hosts(
    fetch: Callable[..., Any], server: LoggedServer
) -> None:
    forwarded = {"Hangup": "t=1", "Baggage": "hangup.token=1,a=2", "X-Own": "mine"}
    fetch(server.url("/out", OUTSIDE), headers=forwarded)
    headers = server.headers_of("/out")
    assert _ours(headers) == ""
    assert (headers["baggage"], headers["x-own"]) == ("a=2", "mine")


@pytest.mark.usefixtures("instrumented")
def test_a_propagator_that_somebody_set_after_ours_leaks_nothing_either(
    fetch: Callable[..., Any], server: LoggedServer
) -> None:
    propagate.set_global_textmap(W3CBaggagePropagator())
    raw = baggage.set_baggage("hangup.token", "f" * 32)
    token = context.attach(baggage.set_baggage("user", "u1", raw))
    try:
        with a_run():
            fetch(server.url("/out", OUTSIDE))
    finally:
        context.detach(token)
    assert _ours(server.headers_of("/out")) == ""


@pytest.mark.usefixtures("instrumented")
def test_a_delivered_run_sends_nothing(
    fetch: Callable[..., Any], server: LoggedServer
) -> None:
    with a_run() as run:
        run.deliver()
        fetch(server.url("/in"))
        fetch(server.url("/stale"), headers={"Hangup": "t=1", "baggage": "hangup.x=1"})
    assert _ours(server.headers_of("/in")) == ""
    assert _ours(server.headers_of("/stale")) == ""


@pytest.mark.usefixtures("hangup")
def test_the_operator_can_allow_an_outside_host(
    fetch: Callable[..., Any], server: LoggedServer
) -> None:
    config.use(config.with_keywords(config.Settings(), propagate_to="*.example"))
    with a_run() as run:
        fetch(server.url("/out", OUTSIDE))
    assert run.id in _ours(server.headers_of("/out"))


@pytest.mark.usefixtures("instrumented")
def test_uninstalled_nothing_is_sent_and_requests_work(
    fetch: Callable[..., Any], server: LoggedServer
) -> None:
    clients.uninstall()
    propagator.uninstall()
    with a_run():
        assert fetch(server.url("/in")).status_code == 200
    assert _ours(server.headers_of("/in")) == ""
    clients.install()
    clients.install()
    with a_run() as run:
        fetch(server.url("/again"))
    assert _ours(server.headers_of("/again")).count(run.id) == 1


@pytest.mark.parametrize("stack", STACKS)
def test_the_http_instrumentation_can_be_taken_off_while_ours_is_on(
    stack: str, request: pytest.FixtureRequest
) -> None:
    transport = import_module(stack).HTTPTransport
    original = transport.__dict__["handle_request"]
    _instrument_http()
    request.getfixturevalue("hangup")
    _uninstrument_http()
    assert transport.__dict__["handle_request"].__wrapped__ is original
    clients.uninstall()
    assert transport.__dict__["handle_request"] is original


@pytest.fixture
def foreign_wrapper(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another tool's wrapper, beneath ours, that injects and adds headers late."""
    for stack in STACKS:
        transport = import_module(stack).HTTPTransport
        original = transport.handle_request

        def handle_request(self: Any, request: Any, original: Any = original) -> Any:
            propagate.inject(request.headers)
            request.headers["Hangup"] = request.headers.get("Hangup", "added late")
            return original(self, request)

        monkeypatch.setattr(transport, "handle_request", handle_request)


@pytest.mark.usefixtures("foreign_wrapper", "hangup")
@pytest.mark.parametrize("stack", STACKS)
def test_what_another_tool_adds_beneath_our_transport_is_stripped_as_well(
    stack: str, server: LoggedServer
) -> None:
    with a_run() as run:
        _sync(import_module(stack), server.url("/out", OUTSIDE))
        _sync(import_module(stack), server.url("/in"))
    assert _ours(server.headers_of("/out")) == ""
    # It has no span, but our client layer told the propagator the host.
    assert f"hangup.token={run.id}" in server.headers_of("/in")["baggage"]


@pytest.mark.usefixtures("hangup")
def test_a_fault_of_ours_does_not_break_a_request(
    fetch: Callable[..., Any], server: LoggedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    guard.strict(on=False)
    for name in ("run_in", "host_allowed"):
        monkeypatch.setattr(f"hangup.clients.httpx.{name}", lambda *_: 1 / 0)
    with a_run():
        assert fetch(server.url("/in")).status_code == 200


@pytest.mark.usefixtures("hangup")
def test_a_failed_request_fails_as_before(fetch: Callable[..., Any]) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    with pytest.raises(Exception, match=r"refused|failed"), a_run():
        fetch(f"http://127.0.0.1:{port}/")


@pytest.mark.usefixtures("instrumented")
def test_a_server_that_holds_the_run_is_told_what_became_of_it(
    fetch: Callable[..., Any], server: LoggedServer
) -> None:
    server.answer_headers[notices.SETTLE_HEADER] = "1"
    with a_run(mode=Mode.OBSERVE) as lost:
        fetch(server.url("/a"))
        lost.cancel("disconnect", at=lost.started_at)
    with a_run() as kept:
        fetch(server.url("/b"))
        fetch(server.url("/c"))
    assert courier().flush(5.0)
    bodies = [
        (headers, body)
        for path, headers, body in server.requests
        if path == notices.SETTLE_PATH
    ]
    assert all(headers[notices.SETTLE_HEADER] == "1" for headers, _ in bodies)
    received = [
        notice
        for _, body in bodies
        for notice in notices.read(notices.decode(body)) or ()
    ]
    assert [(n.token, n.outcome.value, n.cause) for n in received] == [
        (lost.id, "abandoned", "disconnect"),
        (kept.id, "delivered", None),
    ]


@pytest.mark.usefixtures("hangup")
def test_an_outside_server_is_told_nothing_whatever_it_asks_for(
    fetch: Callable[..., Any], server: LoggedServer
) -> None:
    server.answer_headers[notices.SETTLE_HEADER] = "1"
    with a_run():
        fetch(server.url("/out", OUTSIDE))
    assert courier().flush(5.0)
    assert [path for path, *_ in server.requests] == ["/out"]
