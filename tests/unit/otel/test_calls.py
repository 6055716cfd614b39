"""Which spans are spending calls, and what they say of themselves at their start."""

from __future__ import annotations

from typing import Any

import pytest

from hangup.otel import calls

OPERATION = "gen_ai.operation.name"
INFERENCE, EMBEDDINGS, RETRIEVAL = calls.INFERENCE, calls.EMBEDDINGS, calls.RETRIEVAL
TOOL, AGENT = calls.TOOL, calls.AGENT


@pytest.mark.parametrize(
    ("attributes", "kind"),
    [
        # OpenTelemetry: genai-*, openai-v2, anthropic's own, langchain, pydantic-ai
        ({OPERATION: "chat"}, INFERENCE),
        ({OPERATION: "text_completion"}, INFERENCE),
        ({OPERATION: "generate_content"}, INFERENCE),
        ({OPERATION: "embeddings"}, EMBEDDINGS),
        ({OPERATION: "retrieval"}, RETRIEVAL),
        ({OPERATION: "execute_tool"}, TOOL),
        ({OPERATION: "invoke_agent"}, AGENT),
        ({OPERATION: "invoke_workflow"}, AGENT),
        ({OPERATION: "create_agent"}, None),
        # MCP client and server
        ({"mcp.method.name": "tools/call"}, TOOL),
        ({"mcp.method.name": "tools/list"}, None),
        ({"mcp.method.name": "initialize"}, None),
        ({"mcp.method.name": "tools/call", OPERATION: "execute_tool"}, TOOL),
        # OpenInference
        ({"openinference.span.kind": "LLM"}, INFERENCE),
        ({"openinference.span.kind": "EMBEDDING"}, EMBEDDINGS),
        ({"openinference.span.kind": "RETRIEVER"}, RETRIEVAL),
        ({"openinference.span.kind": "TOOL"}, TOOL),
        ({"openinference.span.kind": "AGENT"}, AGENT),
        ({"openinference.span.kind": "CHAIN"}, None),
        # Traceloop
        ({"traceloop.span.kind": "workflow"}, AGENT),
        ({"traceloop.span.kind": "agent"}, AGENT),
        ({"traceloop.span.kind": "tool"}, TOOL),
        ({"traceloop.span.kind": "task"}, None),
        ({"llm.request.type": "chat"}, INFERENCE),
        ({"llm.request.type": "completion"}, INFERENCE),
        ({"llm.request.type": "embedding"}, EMBEDDINGS),
        # The first spelling that means something wins
        ({OPERATION: "chat", "traceloop.span.kind": "tool"}, INFERENCE),
        ({OPERATION: "unheard of", "openinference.span.kind": "LLM"}, INFERENCE),
        # logfire: the call, and what tells of its stream afterwards
        ({OPERATION: "chat", "logfire.span_type": "span"}, INFERENCE),
        ({OPERATION: "chat", "logfire.span_type": "log"}, None),
        # Anything else
        ({"http.request.method": "POST"}, None),
        ({OPERATION: 7}, None),
        ({OPERATION: ("chat",)}, None),
        ({OPERATION: ""}, None),
        ({}, None),
        (None, None),
    ],
)
def test_the_kind_of_a_span(attributes: dict[str, Any] | None, kind: str) -> None:
    assert calls.kind_of(attributes) == kind


@pytest.mark.parametrize(
    ("attributes", "report"),
    [
        ({OPERATION: "chat", "logfire.span_type": "log"}, True),
        ({OPERATION: "chat", "logfire.span_type": "span"}, False),
        ({OPERATION: "chat"}, False),
        ({}, False),
        (None, False),
    ],
)
def test_a_span_that_only_tells_of_a_call_that_is_over(
    attributes: dict[str, Any] | None, *, report: bool
) -> None:
    assert calls.is_report(attributes) is report


@pytest.mark.parametrize(
    ("attributes", "model"),
    [
        ({"gen_ai.request.model": "a", "gen_ai.response.model": "b"}, "a"),
        ({"gen_ai.response.model": "b"}, "b"),
        ({"llm.model_name": "c"}, "c"),
        ({"gen_ai.request.model": ""}, None),
        ({"gen_ai.request.model": 4}, None),
        ({}, None),
        (None, None),
    ],
)
def test_the_model_of_a_span(
    attributes: dict[str, Any] | None, model: str | None
) -> None:
    assert calls.model_of(attributes) == model


@pytest.mark.parametrize(
    ("attributes", "tool"),
    [
        ({"gen_ai.tool.name": "charge"}, "charge"),
        ({"tool.name": "charge"}, "charge"),
        ({"traceloop.entity.name": "charge"}, "charge"),
        ({"gen_ai.tool.name": None}, None),
        (None, None),
    ],
)
def test_the_tool_of_a_span(attributes: dict[str, Any] | None, tool: str) -> None:
    assert calls.tool_of(attributes) == tool


def test_every_kind_in_the_table_is_a_kind() -> None:
    found = {kind for _, kinds in calls._TABLE for kind in kinds.values()}
    assert found | {calls.OTHER} == set(calls.KINDS)
