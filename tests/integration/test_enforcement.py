"""An expired run makes no model request, whatever the SDK does with processors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry.sdk.trace import (
    ConcurrentMultiSpanProcessor,
    SynchronousMultiSpanProcessor,
)
from opentelemetry.sdk.trace.sampling import TraceIdRatioBased
from support.core import in_loop
from support.rig import SHORT, rig
from support.telemetry import opened

from hangup.errors import DeadlineExceeded
from hangup.otel import names
from hangup.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.rig import Rig


class SwallowingMultiSpanProcessor(SynchronousMultiSpanProcessor):
    """The SDK after the pending upstream change: what processors raise is logged."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # the SDK's

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        for processor in self._span_processors:
            try:
                processor.on_start(span, parent_context=parent_context)
            except Exception:  # noqa: BLE001, S112  what the change does
                continue

    def on_end(self, span: Any) -> None:
        for processor in self._span_processors:
            try:
                processor.on_end(span)
            except Exception:  # noqa: BLE001, S112  what the change does
                continue


SDKS: dict[str, Callable[[], dict[str, Any]]] = {
    "as released": dict,
    "sampler ratio 0": lambda: {"sampler": TraceIdRatioBased(0.0)},
    "concurrent processors": lambda: {"multi": ConcurrentMultiSpanProcessor()},
    "swallowing processors": lambda: {"multi": SwallowingMultiSpanProcessor()},
}


async def _expired(rig: Rig, mode: str, *, stream: bool) -> None:
    """Try a model call in a run whose time is up."""
    clock = FakeClock()
    async with opened(clock, 10, mode=mode):
        clock.advance(11)
        if stream:
            async for _ in rig.agent.pieces():
                pass
        else:
            await rig.agent.ask()


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("mode", ["refuse", "enforce"])
@pytest.mark.parametrize("sdk", SDKS)
def test_an_expired_run_makes_no_model_request(
    sdk: str, mode: str, *, stream: bool
) -> None:
    @in_loop
    async def check() -> None:
        async with (
            rig(SHORT, **SDKS[sdk]()) as rig_,
            rig_.agent.talking(),
        ):
            with pytest.raises(DeadlineExceeded):
                await _expired(rig_, mode, stream=stream)
            assert rig_.model.log.opened == 0
            telemetry = rig_.telemetry
            assert telemetry.total(names.REFUSALS, cause="deadline") == 1
            assert telemetry.total(names.REFUSALS) == 1
            assert telemetry.abandoned() == {"deadline": 1}
            # The same call in a run with time left does get through.
            async with opened(FakeClock(), 10):
                await rig_.agent.ask()
            assert rig_.model.log.opened == 1
            assert telemetry.tokens("delivered") == (20, 8)
            for processor in (telemetry.before, telemetry.after):
                assert processor.balanced
                assert len(processor.started) == 2

    check()


@pytest.mark.parametrize("sdk", SDKS)
def test_in_observe_the_same_call_is_made_and_counted_as_one_that_would_be_refused(
    sdk: str,
) -> None:
    @in_loop
    async def check() -> None:
        async with (
            rig(SHORT, **SDKS[sdk]()) as rig_,
            rig_.agent.talking(),
        ):
            await _expired(rig_, "observe", stream=False)
            assert rig_.model.log.opened == 1
            telemetry = rig_.telemetry
            assert telemetry.total(names.REFUSALS, decision="would_refuse") == 1
            assert telemetry.tokens("delivered") == (20, 8)
            assert telemetry.total(names.RUNS, outcome="late") == 1

    check()
