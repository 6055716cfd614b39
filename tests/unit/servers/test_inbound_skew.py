"""A caller whose clock is wrong is told of, wherever its run was read from."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import pytest
from support.asgi import http_scope, reply, serve, spend
from support.telemetry import instrumented
from support.wire import TOKEN

from hangup.otel import names, once
from hangup.otel.wire import Inbound, encode
from hangup.servers.asgi import HangupMiddleware

if TYPE_CHECKING:
    from support.asgi import Receive, Scope, Send


async def _agent(_scope: Scope, _receive: Receive, send: Send) -> None:
    spend()
    await reply(send)


@pytest.mark.parametrize("form", ["hangup", "baggage"])
@pytest.mark.parametrize("skew", [120.0, -120.0, 0.0])
def test_skew_is_warned_of_once_and_on_the_span_of_every_request(
    form: str, skew: float, caplog: pytest.LogCaptureFixture
) -> None:
    once.forget()
    sent = encode(Inbound(TOKEN, 30.0, time.time() + skew + 30.0))
    scope = http_scope(**{form: sent[form == "baggage"]})
    with instrumented() as telemetry:
        for _ in range(2):
            with telemetry.tracer().start_as_current_span("POST /"):
                asyncio.run(serve(HangupMiddleware(_agent), dict(scope)))
        spans = telemetry.spans()
    found = [dict(span.attributes or {}).get(names.SKEW) for span in spans]
    said = [one.getMessage() for one in caplog.records if one.name == "hangup"]
    if not skew:
        assert (found, said) == ([None, None], [])
        return
    assert found == [pytest.approx(skew, abs=10)] * 2
    [warning] = said
    assert "the clock of a caller and ours" in warning
