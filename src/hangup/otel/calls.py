"""Which spans are spending calls: one table over the instrumentations' spellings.

Pure functions of what is visible when a span starts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

INFERENCE: Final = "inference"
EMBEDDINGS: Final = "embeddings"
RETRIEVAL: Final = "retrieval"
TOOL: Final = "tool"
AGENT: Final = "agent"
OTHER: Final = "other"
KINDS: Final = (INFERENCE, EMBEDDINGS, RETRIEVAL, TOOL, AGENT, OTHER)

# Attribute, its values, and the call kind each means. OpenTelemetry's own names first,
# then MCP, OpenInference, Traceloop.
_TABLE: Final[tuple[tuple[str, dict[str, str]], ...]] = (
    (
        "gen_ai.operation.name",
        {
            "chat": INFERENCE,
            "text_completion": INFERENCE,
            "generate_content": INFERENCE,
            "embeddings": EMBEDDINGS,
            "retrieval": RETRIEVAL,
            "execute_tool": TOOL,
            "invoke_agent": AGENT,
            "invoke_workflow": AGENT,
        },
    ),
    ("mcp.method.name", {"tools/call": TOOL}),
    (
        "openinference.span.kind",
        {
            "LLM": INFERENCE,
            "EMBEDDING": EMBEDDINGS,
            "RETRIEVER": RETRIEVAL,
            "TOOL": TOOL,
            "AGENT": AGENT,
        },
    ),
    ("traceloop.span.kind", {"workflow": AGENT, "agent": AGENT, "tool": TOOL}),
    (
        "llm.request.type",
        {"chat": INFERENCE, "completion": INFERENCE, "embedding": EMBEDDINGS},
    ),
)
# A span with none of these at its start is no call.
DECIDING: Final = frozenset(attribute for attribute, _ in _TABLE)
_MODELS: Final = ("gen_ai.request.model", "llm.model_name", "gen_ai.response.model")
_TOOLS: Final = ("gen_ai.tool.name", "tool.name", "traceloop.entity.name")
UNKNOWN_MODEL: Final = "unknown"


def kind_of(attributes: Mapping[str, object] | None) -> str | None:
    """Return the call kind a span with these start attributes is, None for none."""
    if not attributes or DECIDING.isdisjoint(attributes):
        return None
    for attribute, kinds in _TABLE:
        if attribute in attributes:
            value = attributes[attribute]
            if isinstance(value, str) and value in kinds:
                return kinds[value]
    return None


def model_of(attributes: Mapping[str, object] | None) -> str | None:
    """Return the model a span names, None where it names none."""
    if attributes:
        value = attributes.get("gen_ai.request.model")
        if value and isinstance(value, str):
            return value
    return _first_text(attributes, _MODELS)


def tool_of(attributes: Mapping[str, object] | None) -> str | None:
    """Return the tool a span names, None where it names none."""
    return _first_text(attributes, _TOOLS)


def _first_text(
    attributes: Mapping[str, object] | None, names: tuple[str, ...]
) -> str | None:
    if attributes:
        for name in names:
            value = attributes.get(name)
            if isinstance(value, str) and value:
                return value
    return None
