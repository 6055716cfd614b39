"""The model server of four dialects: its log, and hangup's meter on the same bytes."""

from __future__ import annotations

import socket
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import httpx
import pytest
from support.providers.script import Script
from support.providers.server import Provider

from hangup.spend.meter import Meter

if TYPE_CHECKING:
    from collections.abc import Iterator

_MESSAGES = [{"role": "user", "content": "Well?"}]
_ASKED: dict[str, tuple[str, dict[str, Any]]] = {
    "openai.chat": (
        "/v1/chat/completions",
        {
            "model": "m",
            "messages": _MESSAGES,
            "stream_options": {"include_usage": True},
        },
    ),
    "openai.responses": ("/v1/responses", {"model": "m", "input": "Well?"}),
    "anthropic": ("/v1/messages", {"model": "m", "messages": _MESSAGES}),
    "gemini": ("/v1beta/models/m:generateContent", {"contents": []}),
    "gemini array": ("/v1beta/models/m:generateContent", {"contents": []}),
}
_dialects = pytest.mark.parametrize("dialect", _ASKED)


@pytest.fixture
def provider() -> Iterator[Provider]:
    with Provider() as provider:
        yield provider


def _request(dialect: str, *, stream: bool) -> tuple[str, dict[str, Any]]:
    path, body = _ASKED[dialect]
    if not stream:
        return path, body
    if not dialect.startswith("gemini"):
        return path, {**body, "stream": True}
    path = path.replace(":generate", ":streamGenerate")
    return path + ("?alt=sse" if dialect == "gemini" else ""), body


def _metered(provider: Provider, dialect: str, *, stream: bool) -> Meter:
    path, body = _request(dialect, stream=stream)
    with httpx.stream("POST", provider.url + path, json=body) as response:
        assert response.status_code == 200
        meter = Meter.for_request("127.0.0.1", path, response.request.content)
        assert meter is not None
        for piece in response.iter_bytes():
            meter.feed(piece, time.monotonic())
        meter.close(time.monotonic())
    provider.log.settled()
    return meter


@_dialects
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("chunk", [1, 5])
def test_what_the_wire_tells_is_what_the_log_says(
    provider: Provider, dialect: str, chunk: int, *, stream: bool
) -> None:
    provider.script = Script(
        tokens=31, input=90, chunk=chunk, cache_read=40, reasoning=11
    )
    usage = _metered(provider, dialect, stream=stream).usage
    [request] = provider.log.requests
    assert (usage.input, usage.output) == (request.input, request.output) == (90, 31)
    assert usage.cache_read == 40
    assert not request.cut
    assert request.stream is stream
    assert request.closed is not None


def test_d5_subset_not_addend(provider: Provider) -> None:
    for dialect, script, total in (
        ("openai.chat", Script(tokens=1970, reasoning=956, chunk=100), (56, 1970)),
        ("anthropic", Script(input=39_019, cache_read=39_000), (39_019, 24)),
        ("gemini", Script(tokens=996, reasoning=572, chunk=100), (56, 996)),
    ):
        provider.script = script
        for stream in (True, False):
            usage = _metered(provider, dialect, stream=stream).usage
            assert (usage.input, usage.output) == total, dialect


def test_chat_tells_usage_only_if_asked(provider: Provider) -> None:
    body = {"model": "m", "messages": _MESSAGES, "stream": True}
    url = f"{provider.url}/v1/chat/completions"
    assert '"usage"' not in httpx.post(url, json=body).text
    [request] = provider.log.requests
    assert not request.told
    assert request.output == provider.script.tokens


@_dialects
@pytest.mark.parametrize("stream", [True, False])
def test_generation_ends_when_the_caller_is_gone(
    provider: Provider, dialect: str, *, stream: bool
) -> None:
    provider.script = Script(tokens=400, hold=7)
    path, body = _request(dialect, stream=stream)
    request = httpx.Request("POST", provider.url + path, json=body)
    where = urlsplit(provider.url)
    head = "".join(f"{key}: {value}\r\n" for key, value in request.headers.items())
    with socket.create_connection((where.hostname, where.port)) as sock:
        sock.sendall(f"POST {path} HTTP/1.1\r\n{head}\r\n".encode() + request.content)
        provider.log.wait(lambda: provider.log.totals()[1] == 7)
    provider.log.settled()
    [logged] = provider.log.requests
    assert logged.cut
    assert logged.output == 7


def test_the_log_knows_what_had_been_generated_when(provider: Provider) -> None:
    provider.script = Script(tokens=3, rate=100, first=0.02)
    _metered(provider, "anthropic", stream=True)
    [request] = provider.log.requests
    times = [when for when, _ in request.marks]
    assert times[0] - request.opened >= 0.02 + 0.01
    assert request.output_before(times[1]) == 2
    assert request.output_before(request.opened) == 0
