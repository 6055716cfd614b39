"""What a Celery message carries of a run: once, or not at all."""

from __future__ import annotations

import contextlib
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery import Celery  # type: ignore[import-untyped]
from opentelemetry import baggage, context
from opentelemetry.instrumentation.celery import CeleryInstrumentor
from redis import Redis as Client
from support import celery_agent as agent
from support.stores import Redis, directory
from support.telemetry import instrumented

import hangup

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")

_SPANS: Any = CeleryInstrumentor
_EXPECTED = [False, True, True, True, False, False, False, False, False]


def _send() -> None:
    """Send what is tied and what is not, to a queue that nobody serves."""
    queue = {"queue": "nobody"}
    agent.ask.apply_async(("m",), **queue)
    with hangup.run(30):
        agent.ask.apply_async(("m",), **queue)
        agent.ask.apply_async(("m",), headers={"mine": "1"}, **queue)
        agent.app.send_task("ask", ("m",), **queue)
        with hangup.detached():
            agent.ask.apply_async(("m",), **queue)
        agent.ask_aside.apply_async(("m",), **queue)
        agent.ask.apply_async(("m",), countdown=60, **queue)
        tomorrow = datetime.now(UTC) + timedelta(days=1)
        agent.ask.apply_async(("m",), eta=tomorrow, **queue)
        with hangup.cleanup():
            agent.ask.apply_async(("m",), **queue)


def _carries(headers: dict[str, Any]) -> bool:
    ours = sorted(key for key in headers if "hangup" in key.lower())
    assert ours in ([], ["hangup", "hangup-board"])
    in_baggage = headers.get("baggage", "").count("hangup.token=")
    assert in_baggage == (1 if ours and "baggage" in headers else 0)
    return bool(ours)


@pytest.mark.parametrize("spans", [False, True], ids=["alone", "with-spans"])
def test_a_message_carries_the_run_once_or_not_at_all(spans: bool) -> None:  # noqa: FBT001
    """With and without OpenTelemetry's instrumentation; users' baggage stays."""
    with directory() as place, Redis(place) as redis, instrumented() as telemetry:
        agent.connect(f"redis+socket://{redis.socket}")
        client: Any = Client(unix_socket_path=str(redis.socket))
        users = context.attach(baggage.set_baggage("user", "x" * 40))
        instrumentor = _SPANS()
        if spans:
            instrumentor.instrument(tracer_provider=telemetry.tracer_provider)
        try:
            _send()
        finally:
            context.detach(users)
            if spans:
                instrumentor.uninstrument()
        waiting = [json.loads(one) for one in client.lrange("nobody", 0, -1)]
        found = [message["headers"] for message in reversed(waiting)]
        assert [_carries(one) for one in found] == _EXPECTED
        assert [one.get("mine") for one in found].count("1") == 1
        for one in found:
            assert ("user=" in one.get("baggage", "")) is spans
        agent.app.close()


def test_uninstalled_nothing_is_carried_and_celery_is_as_it_was() -> None:
    with directory() as place, Redis(place) as redis:
        client: Any = Client(unix_socket_path=str(redis.socket))
        agent.connect(f"redis+socket://{redis.socket}")
        for installed in (True, False):
            with instrumented() if installed else contextlib.nullcontext():
                with hangup.run(30):
                    agent.ask.apply_async(("m",), queue="nobody")
                wrapped = hasattr(Celery.send_task, "__wrapped__")
                assert wrapped is installed
        found = [json.loads(one)["headers"] for one in client.lrange("nobody", 0, -1)]
        assert [_carries(one) for one in reversed(found)] == [True, False]
        agent.app.close()
