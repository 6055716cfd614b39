"""Notices on the wire: they round-trip, and nothing malformed is half applied."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.wire import TOKEN

from hangup.core.cause import Cause
from hangup.core.scope import RunScope
from hangup.otel import notices
from hangup.otel.notices import Notice, Outcome
from hangup.otel.settlement import Settlement
from hangup.testing import FakeClock


def _entry(token: str, outcome: str, cause: str, ago_ms: float) -> dict[str, object]:
    return {"token": token, "outcome": outcome, "cause": cause, "ago_ms": ago_ms}


GOOD = _entry(TOKEN, "abandoned", "killed", 5)


@pytest.mark.parametrize(
    "payload",
    [
        None,
        {},
        "text",
        [None],
        [[]],
        [GOOD, {**GOOD, "token": TOKEN.upper()}],
        [GOOD, {**GOOD, "token": 5}],
        [GOOD, {**GOOD, "outcome": "lost"}],
        [GOOD, {**GOOD, "outcome": None}],
        [GOOD, {**GOOD, "cause": "none"}],
        [GOOD, {**GOOD, "ago_ms": -1}],
        [GOOD, {**GOOD, "ago_ms": "5"}],
        [GOOD, {**GOOD, "ago_ms": True}],
        [GOOD, {**GOOD, "ago_ms": float("nan")}],
        [GOOD, {**GOOD, "ago_ms": 1e300}],
        [GOOD, {**GOOD, "ago_ms": 10**400}],
        [GOOD] * (notices.MAX_NOTICES + 1),
    ],
)
def test_a_malformed_list_is_refused_as_a_whole(payload: object) -> None:
    booked: list[Outcome] = []
    clock = FakeClock()
    settlement = Settlement(clock)
    with RunScope(name="test", token=TOKEN, joined=True, clock=clock) as run:
        run.deliver()
        settlement.hold(run, lambda outcome, _cause, _at: booked.append(outcome))
    assert settlement.receive(payload) is False
    assert booked == []
    assert settlement.receive([GOOD]) is True
    assert booked == [Outcome.ABANDONED]


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b'{"settlements": 5}', b"\xff", b"[" * 60_000, b" " * 70_000],
)
def test_a_malformed_body_is_refused(body: bytes) -> None:
    assert Settlement(FakeClock()).receive_body(body) is False


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_no_body_raises(body: bytes) -> None:
    assert Settlement(FakeClock()).receive_body(body) in (True, False)


@given(
    st.lists(
        st.builds(
            lambda token, cause, ago: (token, cause, ago),
            st.text("0123456789abcdef", min_size=32, max_size=32),
            st.none() | st.sampled_from(Cause),
            st.integers(0, 10**9),
        ),
        max_size=20,
    )
)
def test_notices_round_trip(parts: list[tuple[str, Cause | None, int]]) -> None:
    clock = FakeClock()
    sent = [
        Notice(
            token,
            Outcome.DELIVERED if cause is None else Outcome.ABANDONED,
            cause,
            clock.monotonic() - ago / 1000,
            clock,
        )
        for token, cause, ago in parts
    ]
    received = notices.read(notices.decode(notices.encode(sent)), clock)
    assert received is not None
    assert [(n.token, n.outcome, n.cause) for n in received] == [
        (n.token, n.outcome, n.cause) for n in sent
    ]
    assert all(abs(a.at - b.at) <= 0.001 for a, b in zip(received, sent, strict=True))


def test_the_largest_batch_fits_into_the_largest_body() -> None:
    clock = FakeClock()
    longest = max(Cause, key=len)
    notice = Notice(TOKEN, Outcome.ABANDONED, longest, clock.monotonic() - 1e8, clock)
    body = notices.encode([notice] * notices.MAX_NOTICES)
    assert len(body) <= notices.MAX_BODY
    assert notices.decode(body) is not None
