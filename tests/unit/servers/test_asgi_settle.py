"""Notices of other processes are taken at one path, and harm nobody."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest
from support.asgi import HTTP_DISCONNECT, Peer, body, chunk, http_scope, start, ticks

import hangup
from hangup import config
from hangup.otel.notices import MAX_BODY
from hangup.servers.asgi import HangupMiddleware

if TYPE_CHECKING:
    from support.asgi import Journal, Message, Receive, Scope, Send


TOKEN = "0123456789abcdef" * 2
PATH = "/.well-known/hangup"


def notice(outcome: str = "abandoned", cause: str = "disconnect") -> bytes:
    entry = {"token": TOKEN, "outcome": outcome, "cause": cause, "ago_ms": 10}
    return json.dumps({"settlements": [entry]}).encode()


async def application(scope: Scope, receive: Receive, send: Send) -> None:
    await send(start(418))
    await send(chunk(b"the application's"))


def settle(scope: Scope, *messages: Message) -> Peer:
    async def test() -> Peer:
        peer = Peer(*messages)
        await HangupMiddleware(application)(scope, peer.receive, peer.send)
        return peer

    return asyncio.run(test())


def settling(path: str = PATH, method: str = "POST") -> dict[str, Any]:
    return http_scope(path, method, hangup_settle="1")


@pytest.mark.parametrize("root", ["", "/api"])
def test_a_notice_is_taken(root: str) -> None:
    scope = {**settling(root + PATH), "root_path": root}
    half = len(notice()) // 2
    peer = settle(scope, body(notice()[:half], more=True), body(notice()[half:]))
    assert peer.status == 204


@pytest.mark.parametrize(
    "data",
    [b"", b"{}", b"nonsense", b'{"settlements": 3}', b"\xff", bytes(MAX_BODY + 1)],
)
def test_a_malformed_or_endless_body_is_answered_400(data: bytes) -> None:
    assert settle(settling(), body(data, more=len(data) > MAX_BODY)).status == 400


def test_a_sender_that_goes_away_is_not_answered() -> None:
    assert settle(settling(), body(b"{", more=True), HTTP_DISCONNECT).sent == []


@pytest.mark.parametrize(
    "scope",
    [
        settling("/well-known/hangup"),
        settling("/x/.well-known/hangup"),
        settling(method="GET"),
        http_scope(PATH, "POST"),
        http_scope(PATH, "POST", hangup_settle="2"),
    ],
)
def test_any_other_request_is_the_applications(scope: Scope) -> None:
    assert settle(scope, body()).status == 418


def test_where_hangup_is_off_the_path_is_the_applications() -> None:
    config.use(config.Settings(mode=config.Mode.OFF))
    assert settle(settling(), body(notice())).status == 418


def test_a_notice_stops_the_live_run_that_continues_the_senders(
    journal: Journal,
) -> None:
    async def work(scope: Scope, receive: Receive, send: Send) -> None:
        run = hangup.current_run()
        assert run is not None
        run.check()
        await asyncio.Event().wait()

    async def test() -> None:
        app = HangupMiddleware(work)
        peer = Peer(body())
        scope = http_scope("/", hangup=f't="{TOKEN}"')
        serving = asyncio.create_task(app(scope, peer.receive, peer.send))
        await ticks()
        teller = Peer(body(notice()))
        await app(settling(), teller.receive, teller.send)
        assert teller.status == 204
        await serving
        # The sender is still there, and waits for an answer.
        assert peer.status == 409
        assert peer.header("hangup-cause") == "disconnect"

    asyncio.run(test())
    assert journal.fates == [("abandoned", "disconnect")]
