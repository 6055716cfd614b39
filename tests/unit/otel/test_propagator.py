"""What leaves the process, and to whom."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry import baggage, context
from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from support.propagation import INSIDE, OUTSIDE, a_run, calling, stock, with_baggage

from hangup import config
from hangup.config import Mode
from hangup.core.cause import Cause
from hangup.core.current import set_bridge
from hangup.otel import once, wire
from hangup.otel.context import OtelBridge
from hangup.otel.propagator import REQUEST_HOST, HangupPropagator
from hangup.testing import FakeClock

if TYPE_CHECKING:
    from hangup.core.run import Run


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(autouse=True)
def _say_everything() -> None:
    once.forget()


@pytest.fixture
def ours(clock: FakeClock) -> HangupPropagator:
    return HangupPropagator(stock(), clock=clock)


def test_an_internal_host_gets_the_run_in_both_forms(
    ours: HangupPropagator, clock: FakeClock
) -> None:
    carrier: dict[str, str] = {}
    with a_run(clock) as run, calling(INSIDE):
        clock.advance(4.0)
        ours.inject(carrier)
    sent = wire.decode_header(carrier["hangup"])
    assert sent == wire.Inbound(run.id, 6.0, clock.wall() + 6.0, Mode.ENFORCE)
    received = baggage.get_all(W3CBaggagePropagator().extract(carrier))
    assert wire.from_baggage(received) == sent
    assert "traceparent" in carrier


def test_an_outside_host_gets_nothing_but_what_it_got_before(
    ours: HangupPropagator, clock: FakeClock
) -> None:
    carrier: dict[str, str] = {}
    with a_run(clock), with_baggage(user="u1"), calling(OUTSIDE):
        ours.inject(carrier)
    assert carrier.pop("traceparent")
    assert carrier == {"baggage": "user=u1"}


@pytest.mark.parametrize(
    ("kind", "attributes", "allowed"),
    [
        (SpanKind.CLIENT, {"url.full": "http://10.0.0.8/x"}, True),
        (SpanKind.CLIENT, {"http.url": "http://localhost:80/x"}, True),
        (SpanKind.CLIENT, {"net.peer.name": "billing"}, True),
        (SpanKind.CLIENT, {"url.full": "https://api.openai.com/v1"}, False),
        (SpanKind.CLIENT, {"http.url": "https://api.openai.com/v1"}, False),
        (SpanKind.CLIENT, {"net.peer.name": "api.openai.com"}, False),
        # A proxy on loopback is not where the request goes.
        (
            SpanKind.CLIENT,
            {"url.full": "https://api.openai.com/", "server.address": "127.0.0.1"},
            False,
        ),
        (SpanKind.CLIENT, {"gen_ai.operation.name": "chat"}, False),
        (SpanKind.CLIENT, None, False),
        (SpanKind.CLIENT, {"rpc.system": "grpc", "rpc.service": "Agent"}, True),
        (SpanKind.CLIENT, {"rpc.system": "grpc", **INSIDE}, True),
        (
            SpanKind.CLIENT,
            {"rpc.system": "grpc", "server.address": "aiplatform.googleapis.com"},
            False,
        ),
        (SpanKind.CLIENT, {"rpc.system": "aws-api"}, False),
        (SpanKind.CLIENT, {"mcp.method.name": "tools/call"}, True),
        (SpanKind.CLIENT, {"mcp.method.name": "tools/call", **OUTSIDE}, False),
        (SpanKind.CLIENT, {"messaging.system": "kafka", **OUTSIDE}, True),
        (SpanKind.PRODUCER, {"messaging.system": "sqs", **OUTSIDE}, True),
        (SpanKind.PRODUCER, None, True),
        # A server's span names the server itself.
        (SpanKind.SERVER, INSIDE, False),
        (SpanKind.INTERNAL, INSIDE, False),
        (SpanKind.CONSUMER, {"messaging.system": "kafka"}, False),
    ],
)
def test_the_current_span_tells_an_internal_carrier(
    ours: HangupPropagator,
    clock: FakeClock,
    kind: SpanKind,
    attributes: dict[str, Any] | None,
    allowed: bool,  # noqa: FBT001  a column of the table
) -> None:
    carrier: dict[str, str] = {}
    with a_run(clock), calling(attributes, kind):
        ours.inject(carrier)
    assert ("hangup" in carrier, "hangup." in str(carrier)) == (allowed, allowed)


def test_without_a_span_nothing_leaves(
    ours: HangupPropagator, clock: FakeClock
) -> None:
    carrier: dict[str, str] = {}
    with a_run(clock):
        ours.inject(carrier)
    assert carrier == {}


def test_a_span_the_sampler_dropped_is_denied_unless_the_client_layer_knows_the_host(
    ours: HangupPropagator, clock: FakeClock
) -> None:
    dropped = TracerProvider(sampler=ALWAYS_OFF).get_tracer("test")
    unknown: dict[str, str] = {}
    known: dict[str, str] = {}
    with (
        a_run(clock),
        dropped.start_as_current_span("call", kind=SpanKind.CLIENT, attributes=INSIDE),
    ):
        ours.inject(unknown)
        token = REQUEST_HOST.set("subagent.team.svc")
        ours.inject(known)
        REQUEST_HOST.reset(token)
    assert "hangup" not in unknown
    assert "hangup" in known


def test_the_host_of_the_client_layer_wins_over_the_span(
    ours: HangupPropagator, clock: FakeClock
) -> None:
    carrier: dict[str, str] = {}
    with a_run(clock), calling(INSIDE):
        token = REQUEST_HOST.set("api.openai.com")
        ours.inject(carrier)
        REQUEST_HOST.reset(token)
    assert "hangup" not in str(carrier)


def test_the_operator_can_allow_more_hosts(
    ours: HangupPropagator, clock: FakeClock
) -> None:
    config.use(config.with_keywords(config.Settings(), propagate_to=".example.com"))
    carrier: dict[str, str] = {}
    with a_run(clock), calling({"server.address": "agents.example.com"}):
        ours.inject(carrier)
    assert "hangup" in carrier


def test_no_live_run_leaves_nothing(ours: HangupPropagator, clock: FakeClock) -> None:
    def carrier_now() -> dict[str, str]:
        carrier = {"hangup": "old", "baggage": "hangup.token=old"}
        with calling(INSIDE):
            ours.inject(carrier)
        carrier.pop("traceparent")
        return carrier

    assert carrier_now() == {}
    with a_run(clock, mode=Mode.OFF):
        assert carrier_now() == {}
    with a_run(clock) as run:
        run.deliver()
        assert carrier_now() == {}


def test_a_request_begun_after_the_abandonment_says_for_how_long_it_is_gone(
    ours: HangupPropagator, clock: FakeClock
) -> None:
    carrier: dict[str, str] = {}
    with a_run(clock, mode=Mode.OBSERVE) as run, calling(INSIDE):
        run.cancel(Cause.DISCONNECT)
        clock.advance(1.5)
        ours.inject(carrier)
    sent = wire.decode_header(carrier["hangup"])
    assert sent is not None
    assert (sent.gone, sent.left, sent.mode) == (1.5, 8.5, Mode.OBSERVE)
    assert "hangup.gone=1500" in carrier["baggage"]


def test_a_child_sends_the_roots_token_and_its_own_tighter_deadline(
    ours: HangupPropagator, clock: FakeClock
) -> None:
    carrier: dict[str, str] = {}
    with a_run(clock) as root, a_run(clock, budget=3.0), calling(INSIDE):
        ours.inject(carrier)
    sent = wire.decode_header(carrier["hangup"])
    assert sent is not None
    assert (sent.token, sent.left) == (root.id, 3.0)


def test_the_run_of_the_given_context_wins(
    ours: HangupPropagator, clock: FakeClock
) -> None:
    carrier: dict[str, str] = {}
    seen: list[tuple[Run, Any]] = []

    async def elsewhere() -> None:
        async with a_run(clock) as run:
            with calling(INSIDE):
                seen.append((run, context.get_current()))
            await asyncio.sleep(0)

    async def both() -> None:
        set_bridge(OtelBridge())
        try:
            task = asyncio.create_task(elsewhere())
            await asyncio.sleep(0)
            async with a_run(clock):
                ours.inject(carrier, context=seen[0][1])
            await task
        finally:
            set_bridge(None)

    asyncio.run(both())
    sent = wire.decode_header(carrier["hangup"])
    assert sent is not None
    assert sent.token == seen[0][0].id


STALE = "a=1, hangup.token=abc,hangup%2Eleft=5,b=2;p=hangup.x"


@pytest.mark.parametrize("live", [True, False])
def test_what_a_carrier_still_holds_from_an_earlier_hop_is_taken_out(
    ours: HangupPropagator,
    clock: FakeClock,
    live: bool,  # noqa: FBT001  with and without a run
) -> None:
    carrier = {"Hangup": "t=1", "Baggage": STALE, "Hangup-Other": "kept"}
    if live:
        with a_run(clock), calling(OUTSIDE):
            ours.inject(carrier)
    else:
        ours.inject(carrier)
    carrier.pop("traceparent", None)
    assert carrier == {"Baggage": "a=1,b=2;p=hangup.x", "Hangup-Other": "kept"}


def test_raw_entries_that_another_propagator_put_into_the_context_do_not_leave(
    ours: HangupPropagator, clock: FakeClock
) -> None:
    outside: dict[str, str] = {}
    inside: dict[str, str] = {}
    raw = {"hangup.token": "stale", "hangup.gone": "5", "user": "u1"}
    with a_run(clock), with_baggage(**raw):
        with calling(OUTSIDE):
            ours.inject(outside)
        with calling(INSIDE):
            ours.inject(inside)
    assert outside["baggage"] == "user=u1"
    assert "stale" not in inside["baggage"]
    assert "hangup.gone" not in inside["baggage"]


def test_a_full_baggage_loses_the_users_last_entries_and_never_ours(
    clock: FakeClock,
) -> None:
    lost: list[int] = []
    ours = HangupPropagator(stock(), on_lost=lost.append, clock=clock)
    users = {f"key{number}": "v" * 300 for number in range(40)}
    carrier: dict[str, str] = {}
    with a_run(clock) as run, with_baggage(**users), calling(INSIDE):
        ours.inject(carrier)
    received = baggage.get_all(W3CBaggagePropagator().extract(carrier))
    sent = wire.from_baggage(received)
    assert sent is not None
    assert sent == wire.decode_header(carrier["hangup"])
    assert sent.token == run.id
    assert "key0" in received
    assert "key39" not in received
    assert lost == [1]


@pytest.mark.parametrize(("count", "size"), [(176, 4), (1, 4000), (20, 300)])
def test_a_baggage_that_fits_is_not_counted_as_lost(
    clock: FakeClock, count: int, size: int
) -> None:
    lost: list[int] = []
    ours = HangupPropagator(stock(), on_lost=lost.append, clock=clock)
    users = {f"k{number}": "v" * size for number in range(count)}
    carrier: dict[str, str] = {}
    with a_run(clock), with_baggage(**users), calling(INSIDE):
        ours.inject(carrier)
    received = baggage.get_all(W3CBaggagePropagator().extract(carrier))
    assert users.items() <= received.items()
    assert lost == []


def test_without_a_baggage_propagator_the_header_still_travels(
    clock: FakeClock,
) -> None:
    ours = HangupPropagator(TraceContextTextMapPropagator(), clock=clock)
    carrier: dict[str, str] = {}
    with a_run(clock), calling(INSIDE):
        ours.inject(carrier)
    assert set(carrier) == {"traceparent", "hangup"}
    assert ours.fields >= {"traceparent", "hangup"}
