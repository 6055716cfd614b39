"""Calls that are never refused, and calls that have too little time."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from typing import TYPE_CHECKING

import pytest
from opentelemetry.trace import SpanKind
from support.telemetry import abandoned, agent, chat, instrumented, opened, tool, used

import hangup
from hangup.errors import RunCancelled, Stop
from hangup.otel import names

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer
    from support.telemetry import Telemetry

    from hangup.testing import FakeClock


def test_cleanup_irreversible_and_detached_are_never_refused(
    telemetry: Telemetry, tracer: Tracer, clock: FakeClock
) -> None:
    def charge() -> str:
        with chat(tracer, name="charging"):
            return "charged"

    async def work() -> None:
        async with opened(clock) as run:

            def act() -> str:
                run.cancel("killed")
                return charge()

            assert await hangup.irreversible(act) == "charged"
            with hangup.cleanup(budget=5), chat(tracer, name="cleanup"):
                pass
            with hangup.detached(), chat(tracer, name="detached"):
                pass
            with chat(tracer, name="ordinary"):
                pass

    with pytest.raises(RunCancelled):
        asyncio.run(work())
    assert telemetry.before.balanced
    decisions = {
        span.name: (span.attributes or {}).get(names.DECISION)
        for span in telemetry.spans()
    }
    assert decisions == {
        "charging": None,
        "cleanup": None,
        "detached": None,
        "ordinary": "refuse",
    }


def test_a_cleanup_that_used_up_its_budget_is_refused_again(
    telemetry: Telemetry, tracer: Tracer, clock: FakeClock
) -> None:
    with abandoned(clock) as run:
        run.cancel("killed")
        with hangup.cleanup(budget=5):
            clock.advance(6)
            with chat(tracer):
                pass


def test_tools_named_irreversible_are_protected_and_so_is_what_is_inside(
    clock: FakeClock,
) -> None:
    with instrumented(irreversible="charge_card,send_mail") as telemetry:
        tracer = telemetry.tracer()
        with abandoned(clock) as run:
            run.cancel("killed")
            clock.advance(1)
            with (
                tool(tracer, "charge_card"),
                tracer.start_as_current_span("HTTP POST"),
                agent(tracer),
                chat(tracer, name="fraud check") as inner,
            ):
                used(inner, 3, 4)
                clock.advance(1)
            with tool(tracer, "send_newsletter"):
                pass
        assert telemetry.total(names.REFUSALS) == 1
        assert telemetry.total(names.REFUSALS, kind="tool") == 1
        assert telemetry.tokens("wasted") == (3, 4)


def test_no_exception_ever_comes_from_an_mcp_server_span(
    telemetry: Telemetry, tracer: Tracer, clock: FakeClock
) -> None:
    with opened(clock) as run:
        run.cancel("killed")
        attributes = {
            "gen_ai.operation.name": "execute_tool",
            "mcp.method.name": "tools/call",
        }
        span = tracer.start_span("tools/call x", None, SpanKind.SERVER, attributes)
        span.end()
        with pytest.raises(Stop):
            tracer.start_span("send", None, SpanKind.CLIENT, attributes)


@pytest.mark.parametrize(
    ("attributes", "left", "refused"),
    [
        ({"gen_ai.operation.name": "chat"}, 1.9, True),
        ({"gen_ai.operation.name": "chat"}, 2.0, False),
        ({"gen_ai.operation.name": "execute_tool"}, 0.4, True),
        ({"gen_ai.operation.name": "execute_tool"}, 0.5, False),
        ({"gen_ai.operation.name": "invoke_agent"}, 0.001, False),
        (
            {"gen_ai.operation.name": "chat", "gen_ai.request.model": "slow"},
            4.9,
            True,
        ),
        (
            {"gen_ai.operation.name": "chat", "gen_ai.request.model": "fast"},
            0.2,
            False,
        ),
        ({"openinference.span.kind": "LLM", "llm.model_name": "slow"}, 4.9, True),
    ],
)
def test_needs_are_per_kind_and_the_models_own_wins(
    clock: FakeClock, attributes: dict[str, str], left: float, *, refused: bool
) -> None:
    with instrumented(needs="inference=2,tool=0.5,slow=5,fast=0.1") as telemetry:
        # The clock starts at a power of ten: a remainder of exactly 2.0 must stay one.
        with opened(clock, 8) as run:
            clock.advance(8 - left)
            with pytest.raises(Stop) if refused else nullcontext():
                telemetry.tracer().start_span("call", attributes=attributes)
            assert (run.token.abandonment is not None) is refused
        assert telemetry.total(names.REFUSALS, cause="deadline") == refused
