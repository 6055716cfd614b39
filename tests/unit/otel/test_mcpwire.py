"""What of a run stands in the messages of MCP."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hangup.config import Mode
from hangup.core.cause import Cause
from hangup.otel import mcpwire, wire

TOKEN = "0123456789abcdef0123456789abcdef"
RUN = wire.Inbound(TOKEN, 2.0, 1_000.0, Mode.OBSERVE)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


def meta(**entries: object) -> dict[str, Any]:
    return {"_meta": entries}


def test_the_header_goes_before_the_baggage() -> None:
    entries = ",".join(
        f"{key}={value}"
        for key, value in wire.to_baggage(wire.Inbound("f" * 32, 9.0)).items()
    )
    header = wire.encode_header(RUN)
    assert mcpwire.inbound_of(meta(hangup=header, baggage=entries)) == RUN
    found = mcpwire.inbound_of(meta(baggage=f"a=b,{entries}"))
    assert found == wire.Inbound("f" * 32, 9.0)
    assert mcpwire.inbound_of(meta(hangup="broken", baggage=entries)) == found


@pytest.mark.parametrize(
    "params", [None, {}, {"_meta": None}, {"_meta": []}, meta(), meta(baggage="a=b")]
)
def test_a_request_of_nobody_is_nobodys(params: Any) -> None:
    assert mcpwire.inbound_of(params) is None


@given(JSON, JSON)
def test_whatever_stands_there_is_no_error(header: object, entries: object) -> None:
    for params in (meta(hangup=header, baggage=entries), {"_meta": header}):
        found = mcpwire.inbound_of(params)
        assert found is None or len(found.token) == 32


def test_an_error_says_which_run_was_stopped_and_why() -> None:
    data = mcpwire.data_of(TOKEN, Cause.SUPERSEDED)
    assert mcpwire.cause_in(data, TOKEN) is Cause.SUPERSEDED
    assert mcpwire.cause_in(data, "f" * 32) is None
    assert mcpwire.code_of(Cause.DEADLINE) == -32001
    assert {
        mcpwire.code_of(cause) for cause in Cause if cause is not Cause.DEADLINE
    } == {-32800}


@given(JSON)
def test_whatever_an_error_says_is_no_error_of_ours(said: object) -> None:
    assert mcpwire.cause_in(said, TOKEN) is None
    told = {"hangup": {"run": TOKEN, "cause": said}}
    assert mcpwire.cause_in(told, TOKEN) in (None, *Cause)


@pytest.mark.parametrize(
    ("method", "params", "tool"),
    [
        ("tools/call", {"name": "add"}, "add"),
        ("tools/call", {"name": 7}, None),
        ("tools/call", None, None),
        ("prompts/get", {"name": "add"}, None),
    ],
)
def test_a_tool_is_what_a_call_names(method: str, params: Any, tool: object) -> None:
    assert mcpwire.tool_of(method, params) == tool
