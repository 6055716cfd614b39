"""Default deny for the other HTTP clients, redirects included, over real sockets."""

from __future__ import annotations

import asyncio
import http.client
import urllib.request
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry import baggage, context, propagate
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import SpanKind
from support.wire import OUTSIDE, LoggedServer, logged_server, resolving_outside

from hangup import clients
from hangup.core.scope import RunScope
from hangup.otel import propagator

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Get = Callable[[str, dict[str, str]], None]

CLIENT = SpanKind.CLIENT


def _urllib(url: str, headers: dict[str, str]) -> None:
    request = urllib.request.Request(url, headers=headers)  # noqa: S310  the test's own
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    opener.open(request).read()


def _requests(url: str, headers: dict[str, str]) -> None:
    with import_module("requests").Session() as session:
        session.trust_env = False
        session.get(url, headers=headers)


def _aiohttp(url: str, headers: dict[str, str]) -> None:
    aiohttp = import_module("aiohttp")

    async def get() -> None:
        connector = aiohttp.TCPConnector(resolver=aiohttp.ThreadedResolver())
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            session.get(url, headers=headers) as answer,
        ):
            await answer.read()

    asyncio.run(get())


CLIENTS: dict[str, Get] = {
    "urllib": _urllib,
    "requests": _requests,
    "aiohttp": _aiohttp,
}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[LoggedServer]:
    resolving_outside(monkeypatch)
    with logged_server() as server:
        yield server


@pytest.fixture
def _installed() -> Iterator[None]:
    before = propagate.get_global_textmap()
    propagator.install()
    clients.install()
    yield
    clients.uninstall()
    propagator.uninstall()
    propagate.set_global_textmap(before)


@pytest.fixture(params=CLIENTS)
def get(request: pytest.FixtureRequest, _installed: None) -> Get:
    """Call as the instrumentations of these clients do: inject once, before hop 1."""
    if request.param != "urllib":
        pytest.importorskip(request.param)
    call = CLIENTS[request.param]
    tracer = TracerProvider().get_tracer("test")

    def injected(url: str, headers: dict[str, str]) -> None:
        attributes = {"url.full": url}
        with tracer.start_as_current_span("GET", kind=CLIENT, attributes=attributes):
            sent: dict[str, str] = {}
            propagate.inject(sent)
            call(url, {**sent, **headers})

    return injected


def _ours(headers: dict[str, str]) -> str:
    return " ".join(
        f"{key}={value}" for key, value in headers.items() if "hangup" in key + value
    )


def test_a_redirect_to_an_outside_host_takes_nothing_of_ours_along(
    get: Get, server: LoggedServer
) -> None:
    server.redirects["/in"] = server.url("/out", OUTSIDE)
    token = context.attach(baggage.set_baggage("user", "u1"))
    try:
        with RunScope(30, name="test") as run:
            get(server.url("/in"), {})
    finally:
        context.detach(token)
    assert run.id in _ours(server.headers_of("/in"))
    headers = server.headers_of("/out")
    assert _ours(headers) == ""
    assert headers["baggage"] == "user=u1"


def test_an_outside_host_gets_nothing_even_where_the_user_forwards_it(
    get: Get, server: LoggedServer
) -> None:
    forwarded = {"Hangup": "t=1", "Baggage": "hangup.token=1,a=2", "X-Own": "mine"}
    with RunScope(30, name="test"):
        get(server.url("/out", OUTSIDE), forwarded)
    headers = server.headers_of("/out")
    assert _ours(headers) == ""
    assert (headers["baggage"], headers["x-own"]) == ("a=2", "mine")


@pytest.mark.usefixtures("_installed")
def test_a_proxy_on_loopback_is_not_where_the_request_goes(
    server: LoggedServer,
) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=5)
    sent: dict[str, Any] = {"Hangup": "t=1", "baggage": "a=2,hangup.token=1"}
    connection.request("GET", f"http://{OUTSIDE}/far", headers=sent)
    connection.getresponse().read()
    connection.request("GET", "/near", headers=sent)
    connection.getresponse().read()
    connection.close()
    assert _ours(server.headers_of(f"http://{OUTSIDE}/far")) == ""
    assert server.headers_of(f"http://{OUTSIDE}/far")["baggage"] == "a=2"
    assert server.headers_of("/near")["hangup"] == "t=1"


def test_uninstalled_the_gate_is_open_again(server: LoggedServer) -> None:
    put = http.client.HTTPConnection.putheader
    clients.install()
    assert http.client.HTTPConnection.putheader is not put
    clients.uninstall()
    assert http.client.HTTPConnection.putheader is put
    _urllib(server.url("/out", OUTSIDE), {"Hangup": "t=1"})
    assert server.headers_of("/out")["hangup"] == "t=1"
