"""What the propagator takes in, its faults, and how it is installed."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry import baggage, context, propagate, trace
from opentelemetry.propagators.composite import CompositePropagator
from support.propagation import INSIDE, a_run, calling, stock, with_baggage
from support.wire import TOKEN

from hangup.config import Mode
from hangup.core import guard
from hangup.otel import once, propagator, wire
from hangup.otel.context import INBOUND_KEY
from hangup.otel.propagator import HangupPropagator
from hangup.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(autouse=True)
def _say_everything() -> None:
    once.forget()


@pytest.fixture
def ours(clock: FakeClock) -> HangupPropagator:
    return HangupPropagator(stock(), clock=clock)


def test_an_oversized_inbound_baggage_is_counted_and_the_header_survives_it(
    clock: FakeClock,
) -> None:
    lost: list[int] = []
    ours = HangupPropagator(stock(), on_lost=lost.append, clock=clock)
    carrier = {
        "baggage": "x=" + "v" * 12_000,
        "hangup": f't="{TOKEN}", l=5000',
    }
    found = ours.extract(carrier, context.Context()).get(INBOUND_KEY)
    assert found == wire.Inbound(TOKEN, left=5.0)
    assert lost == [1]


def test_extract_keeps_the_inbound_and_removes_the_raw_entries(
    ours: HangupPropagator, clock: FakeClock
) -> None:
    sent = wire.Inbound(TOKEN, 5.0, clock.wall() + 5.0, Mode.OBSERVE)
    entries = ",".join(f"{key}={value}" for key, value in wire.to_baggage(sent).items())
    found = ours.extract({"baggage": f"user=u1,{entries}"}, context.Context())
    assert baggage.get_all(found) == {"user": "u1"}
    inbound = found.get(INBOUND_KEY)
    assert isinstance(inbound, wire.Inbound)
    assert (inbound.token, inbound.left, inbound.mode) == (TOKEN, 5.0, Mode.OBSERVE)


def test_a_header_wins_over_baggage_and_a_malformed_one_does_not(
    ours: HangupPropagator,
) -> None:
    entries = f"hangup.token={TOKEN},hangup.left=9000"
    both = {"baggage": entries, "hangup": f't="{TOKEN}", l=5000'}
    found = ours.extract(both, context.Context()).get(INBOUND_KEY)
    assert found == wire.Inbound(TOKEN, left=5.0)
    broken = {"baggage": entries, "hangup": "t=!!"}
    found = ours.extract(broken, context.Context()).get(INBOUND_KEY)
    assert found == wire.Inbound(TOKEN, left=9.0)


def test_nothing_inbound_leaves_the_context_as_it_was(ours: HangupPropagator) -> None:
    before = baggage.set_baggage("user", "u1", context.Context())
    assert ours.extract({}, before) is before


def test_without_any_other_propagator_the_run_is_still_taken_in() -> None:
    ours = HangupPropagator(CompositePropagator([]))
    found = ours.extract({"hangup": f't="{TOKEN}", l=5000'}).get(INBOUND_KEY)
    assert found == wire.Inbound(TOKEN, left=5.0)
    assert ours.extract({}) == context.get_current()


def test_skew_is_reported_once_and_kept(
    ours: HangupPropagator, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    ahead = wire.Inbound(TOKEN, 10.0, clock.wall() + 10.0 + 120.0)
    carrier = {"hangup": wire.encode_header(ahead)}
    with caplog.at_level(logging.WARNING, "hangup"):
        for _ in range(2):
            found = ours.extract(carrier, context.Context()).get(INBOUND_KEY)
    assert isinstance(found, wire.Inbound)
    assert found.skew == pytest.approx(120.0)
    assert wire.deadline_of(found, clock, None).remaining() == 10.0
    assert [r.getMessage() for r in caplog.records if "120.0 s" in r.getMessage()] != []
    assert len(caplog.records) == 1


def test_a_fault_of_ours_never_reaches_the_caller_and_leaks_nothing(
    ours: HangupPropagator, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    guard.strict(on=False)
    monkeypatch.setattr(propagator, "outgoing", lambda _run: 1 / 0)
    monkeypatch.setattr(wire, "decode_header", lambda _text: 1 / 0)
    carrier = {"hangup": "stale"}
    with a_run(clock), with_baggage(**{"hangup.token": "stale", "user": "u1"}):
        with calling(INSIDE):
            ours.inject(carrier)
        found = ours.extract(carrier | {"hangup": "x"})
    assert carrier["baggage"] == "user=u1"
    assert "hangup" not in carrier
    assert trace.get_current_span(found).get_span_context().is_valid


def test_the_wrapped_propagators_own_faults_stay_its_own(clock: FakeClock) -> None:
    def broken(*args: object, **kwargs: object) -> None:
        raise ValueError("mine")

    wrapped: Any = SimpleNamespace(fields=set(), inject=broken, extract=broken)
    ours = HangupPropagator(wrapped, clock=clock)
    with pytest.raises(ValueError, match="mine"):
        ours.inject({})
    with pytest.raises(ValueError, match="mine"):
        ours.extract({})


@pytest.fixture
def restored_global() -> Iterator[None]:
    before = propagate.get_global_textmap()
    yield
    propagator.uninstall()
    propagate.set_global_textmap(before)


@pytest.mark.usefixtures("restored_global")
def test_install_wraps_the_configured_propagator_once_and_uninstall_restores_it() -> (
    None
):
    configured = stock()
    propagate.set_global_textmap(configured)
    first = propagator.install()
    assert propagator.install() is first
    assert propagate.get_global_textmap() is first
    assert first.wrapped is configured
    propagator.uninstall()
    propagator.uninstall()
    assert propagate.get_global_textmap() is configured


@pytest.mark.usefixtures("restored_global")
def test_uninstall_leaves_a_propagator_set_after_ours_and_falls_silent_inside_it(
    clock: FakeClock,
) -> None:
    propagate.set_global_textmap(stock())
    theirs = CompositePropagator([propagator.install()])
    propagate.set_global_textmap(theirs)
    propagator.uninstall()
    assert propagate.get_global_textmap() is theirs
    carrier: dict[str, str] = {}
    with a_run(clock), calling(INSIDE):
        propagate.inject(carrier)
    assert set(carrier) == {"traceparent"}


@pytest.mark.usefixtures("restored_global")
def test_installing_again_around_a_propagator_that_holds_ours_sends_the_run_once(
    clock: FakeClock,
) -> None:
    propagate.set_global_textmap(stock())
    first = propagator.install()
    propagate.set_global_textmap(CompositePropagator([first]))
    second = propagator.install()
    assert (first.active, second.active) == (False, True)
    carrier: dict[str, str] = {}
    with a_run(clock), calling(INSIDE):
        propagate.inject(carrier)
    assert carrier["baggage"].count("hangup.token") == 1
    assert "hangup" in carrier


def test_the_time_left_counts_from_the_extraction_however_late_the_run_is_opened(
    ours: HangupPropagator, clock: FakeClock
) -> None:
    """As where a slow middleware stands between who extracts and who opens the run."""
    carrier = {"hangup": f't="{TOKEN}", l=5000, g=250'}
    found = ours.extract(carrier, context.Context()).get(INBOUND_KEY)
    assert isinstance(found, wire.Inbound)
    clock.advance(2.0)
    assert wire.deadline_of(found, clock, None).remaining() == 3.0
    assert wire.deadline_of(found, clock, 4.0).remaining() == 2.0
    assert wire.arrived_at(found, clock) == clock.monotonic() - 2.0
    # On another clock that instant means nothing.
    other = FakeClock()
    assert wire.deadline_of(found, other, None).remaining() == 5.0
