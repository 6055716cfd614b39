"""Captured at an outside host: none of our keys, in 100 of 100 requests.

httpx, httpx2, aiohttp and requests, each with OpenTelemetry's instrumentation on, asked
directly and redirected there by a host inside. The outside host is a real server: only
its name is made to resolve to loopback. (gRPC has a test of its own.)
"""

from __future__ import annotations

import asyncio
import contextlib
from importlib import import_module
from typing import TYPE_CHECKING, Any

import aiohttp
import httpx
import httpx2
import pytest
import requests
from opentelemetry import baggage, context
from opentelemetry.instrumentation.httpx import (
    HTTPX2ClientInstrumentor,
    HTTPXClientInstrumentor,
)
from support.beside import add_beside
from support.requires import wide
from support.telemetry import instrumented
from support.wire import OUTSIDE, LoggedServer, logged_server, resolving_outside

import hangup

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from opentelemetry.sdk.trace import TracerProvider
    from support.telemetry import Telemetry

    Fetch = Callable[..., None]

REQUESTS = 100
_DIRECT, _REDIRECTED = "/out", "/in"


def _instrumentor(package: str, name: str) -> Any:
    """Return one that may be of a package that the test has put there."""
    return getattr(import_module(f"opentelemetry.instrumentation.{package}"), name)()


def _with_httpx(module: Any) -> Fetch:
    def fetch(urls: list[str]) -> None:
        with module.Client(follow_redirects=True) as client:
            for url in urls:
                assert client.get(url).status_code == 200

    return fetch


def _with_async_httpx(module: Any) -> Fetch:
    async def all_of(urls: list[str]) -> None:
        async with module.AsyncClient(follow_redirects=True) as client:
            for url in urls:
                assert (await client.get(url)).status_code == 200

    return lambda urls: asyncio.run(all_of(urls))


def _with_aiohttp(urls: list[str], headers: dict[str, str] | None = None) -> None:
    async def fetch() -> None:
        # A resolver of its own asks whom the test has made to answer.
        connector = aiohttp.TCPConnector(resolver=aiohttp.ThreadedResolver())
        async with aiohttp.ClientSession(connector=connector) as session:
            for url in urls:
                async with session.get(url, headers=headers) as answer:
                    assert answer.status == 200

    asyncio.run(fetch())


def _with_requests(urls: list[str], headers: dict[str, str] | None = None) -> None:
    with requests.Session() as session:
        for url in urls:
            assert session.get(url, headers=headers, timeout=10).status_code == 200


STACKS: dict[str, tuple[Callable[[], Any], Fetch]] = {
    "httpx": (HTTPXClientInstrumentor, _with_httpx(httpx)),
    "httpx-async": (HTTPXClientInstrumentor, _with_async_httpx(httpx)),
    "httpx2": (HTTPX2ClientInstrumentor, _with_httpx(httpx2)),
    "httpx2-async": (HTTPX2ClientInstrumentor, _with_async_httpx(httpx2)),
    "aiohttp": (
        lambda: _instrumentor("aiohttp_client", "AioHttpClientInstrumentor"),
        _with_aiohttp,
    ),
    "requests": (
        lambda: _instrumentor("requests", "RequestsInstrumentor"),
        _with_requests,
    ),
}


EACH = [wide(name) if name == "aiohttp" else name for name in STACKS]


@contextlib.contextmanager
def _spans(make: Callable[[], Any], provider: TracerProvider) -> Iterator[None]:
    instrumentor = make()
    instrumentor.instrument(tracer_provider=provider)
    try:
        yield
    finally:
        instrumentor.uninstrument()


# The latest release; it names older siblings than the others do.
_AIOHTTP = "opentelemetry-instrumentation-aiohttp-client==0.66b1"


@pytest.fixture(autouse=True)
def _aiohttps_own(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if "aiohttp" in request.node.callspec.params.values():
        add_beside(monkeypatch, tmp_path, _AIOHTTP)


@pytest.fixture
def telemetry() -> Iterator[Telemetry]:
    with instrumented() as found:
        yield found


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[LoggedServer]:
    resolving_outside(monkeypatch)
    with logged_server() as made:
        made.redirects[_REDIRECTED] = made.url("/redirected", OUTSIDE)
        yield made


def _ours(headers: dict[str, str]) -> list[str]:
    return [key for key, value in headers.items() if "hangup" in f"{key}={value}"]


@pytest.mark.parametrize("stack", EACH)
def test_an_outside_host_sees_none_of_our_keys_in_100_of_100_requests(
    stack: str, telemetry: Telemetry, server: LoggedServer
) -> None:
    make, fetch = STACKS[stack]
    users = context.attach(baggage.set_baggage("user", "u1"))
    try:
        with (
            _spans(make, telemetry.tracer_provider),
            hangup.run(60, name="test") as run,
        ):
            fetch([server.url(_DIRECT, OUTSIDE)] * (REQUESTS // 2))
            fetch([server.url(_REDIRECTED)] * (REQUESTS // 2))
    finally:
        context.detach(users)
    outside = [
        headers
        for path, headers, _ in server.requests
        if path in (_DIRECT, "/redirected")
    ]
    inside = [headers for path, headers, _ in server.requests if path == _REDIRECTED]
    assert len(outside) == REQUESTS
    assert [found for headers in outside if (found := _ours(headers))] == []
    # It would see nothing either if nothing were ever sent.
    assert len(inside) == REQUESTS // 2
    for headers in inside:
        assert run.id in headers["hangup"]
        assert headers["baggage"].count(f"hangup.token={run.id}") == 1
    # What is the user's goes on to where it went without us.
    assert all("traceparent" in headers for headers in outside[: REQUESTS // 2])
    assert all("user=u1" in headers["baggage"] for headers in outside)


@pytest.mark.usefixtures("telemetry")
@pytest.mark.parametrize("stack", [wide("aiohttp"), "requests"])
def test_headers_that_a_service_hands_on_are_stripped_at_every_hop(
    stack: str, server: LoggedServer
) -> None:
    """Nothing injects here: they came with a request, and go on with another."""
    _, fetch = STACKS[stack]
    handed_on = {"Hangup": "t=1", "Baggage": "hangup.token=1,a=2", "X-Own": "mine"}
    fetch([server.url(_DIRECT, OUTSIDE), server.url(_REDIRECTED)], handed_on)
    for path in (_DIRECT, "/redirected"):
        headers = server.headers_of(path)
        assert _ours(headers) == []
        assert (headers["baggage"], headers["x-own"]) == ("a=2", "mine")
    assert _ours(server.headers_of(_REDIRECTED)) == ["hangup", "baggage"]
