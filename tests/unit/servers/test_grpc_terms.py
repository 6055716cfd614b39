"""What an RPC gets: a budget by its shape, and the deadline of the call itself."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import grpc  # type: ignore[import-untyped]
import pytest

from hangup import config
from hangup.core.cause import Cause
from hangup.servers._common_terms import Terms
from hangup.servers._grpc_call import CODE, failure, fields_of, time_left
from hangup.servers.grpc import AioInterceptor, Interceptor, join
from hangup.testing import FakeClock

if TYPE_CHECKING:
    from hangup.core.run import Run

METHOD = "/test.Agent/Ask"


class Context:
    """What gRPC tells of a call."""

    def __init__(
        self, left: float | None = None, code: Any = None, **fields: Any
    ) -> None:
        self._left, self._code, self._fields = left, code, fields

    def time_remaining(self) -> float | None:
        return self._left

    def invocation_metadata(self) -> list[tuple[str, Any]]:
        return list(self._fields.items())

    def code(self) -> Any:
        return self._code


def opened(terms: Terms, kind: str, left: float | None = None, **fields: str) -> Run:
    context = Context(left, **fields)
    metadata, native = fields_of(context), time_left(context)
    opening = terms.open(kind, "", METHOD, "", metadata, context, native)
    assert opening is not None
    with opening.run as run:
        return run


@pytest.mark.parametrize(
    ("given", "by_default", "expected"),
    [
        (None, 30.0, {"http": 30.0, "stream": math.inf, "websocket": math.inf}),
        (20.0, 30.0, {"http": 20.0, "stream": 20.0, "websocket": math.inf}),
    ],
)
def test_the_default_budget_is_for_one_answer(
    given: float | None, by_default: float, expected: dict[str, float]
) -> None:
    config.use(config.with_keywords(config.current(), budget=by_default))
    clock = FakeClock()
    terms = Terms(budget=given, clock=clock)
    found = {kind: opened(terms, kind).remaining() for kind in expected}
    assert found == expected


@pytest.mark.parametrize(
    ("left", "expected"),
    [(None, 30.0), (60.0, 30.0), (5.0, 5.0), (0.0, 0.0), (1e12, 30.0), (-3.0, 0.0)],
)
def test_the_call_tightens_and_never_extends(
    left: float | None, expected: float
) -> None:
    terms = Terms(budget=30, clock=FakeClock())
    assert opened(terms, "http", left).remaining() == expected


def test_the_run_on_the_wire_tightens_too() -> None:
    terms = Terms(budget=30, clock=FakeClock())
    token = "ab" * 16
    run = opened(terms, "http", 20.0, hangup=f't="{token}", l=7000')
    assert (run.id, run.remaining(), run.joined) == (token, 7.0, True)
    run = opened(terms, "http", 5.0, hangup=f't="{token}", l=7000')
    assert run.remaining() == 5.0


def test_metadata_of_any_kind_is_read() -> None:
    fields = dict(fields_of(Context(text="grün", raw=b"\xff\x00")))
    assert fields == {b"text": "grün".encode(), b"raw": b"\xff\x00"}


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (None, None),
        (0, None),
        (grpc.StatusCode.OK, None),
        (grpc.StatusCode.NOT_FOUND, None),
        (grpc.StatusCode.CANCELLED, None),
        (5, None),
        (13, "status INTERNAL"),
        (grpc.StatusCode.INTERNAL, "status INTERNAL"),
        (grpc.StatusCode.UNAVAILABLE, "status UNAVAILABLE"),
    ],
)
def test_only_faults_of_the_server_fail_a_run(code: Any, expected: str | None) -> None:
    assert failure(Context(code=code)) == expected


def test_every_cause_has_its_status() -> None:
    assert set(CODE) == set(Cause)
    assert grpc.StatusCode.CANCELLED not in CODE.values()


@pytest.mark.parametrize("kind", [Interceptor, AioInterceptor])
def test_one_interceptor_joins_the_others_behind_those_of_tracing(kind: Any) -> None:
    class Traces:
        __module__ = "opentelemetry.instrumentation.grpc._server"

    tracing, theirs = Traces(), object()
    joined, ours = join([tracing, theirs], kind, lambda: True)
    assert joined == [tracing, ours, theirs]
    by_hand = kind(budget=3)
    assert join((theirs, by_hand), kind, lambda: True) == ([theirs, by_hand], by_hand)
    assert join(None, kind, lambda: True)[0][0].active
    assert not join(None, kind, lambda: False)[0][0].active
