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
_OPERATION, _OPERATIONS = _TABLE[0]
# A span that logfire makes when a stream is over, to tell what it used: it stands
# beside the span of the call, which has ended without knowing, and lasts no time.
_REPORT: Final = ("logfire.span_type", "log")
# A span with none of these at its start is no call.
DECIDING: Final = frozenset(attribute for attribute, _ in _TABLE)
_MODELS: Final = ("gen_ai.request.model", "llm.model_name", "gen_ai.response.model")
_TOOLS: Final = ("gen_ai.tool.name", "tool.name", "traceloop.entity.name")
UNKNOWN_MODEL: Final = "unknown"


def kind_of(attributes: Mapping[str, object] | None) -> str | None:
    """Return the call kind a span with these start attributes is, None for none.

    One that only tells of a call (:func:`is_report`) is none: it must neither be
    refused nor counted.
    """
    if not attributes or DECIDING.isdisjoint(attributes):
        return None
    return kind_among(attributes)


def kind_among(attributes: Mapping[str, object]) -> str | None:
    """Return the same of attributes that are known to have one of ``DECIDING``."""
    # Nearly every call is told by the first line of the table: no loop for those.
    value = attributes.get(_OPERATION)
    kind = _OPERATIONS.get(value) if value.__class__ is str else None
    if _REPORT[0] in attributes and is_report(attributes):
        return None
    if kind is not None:
        return kind
    for attribute, kinds in _TABLE:
        if attribute in attributes:
            value = attributes[attribute]
            if isinstance(value, str) and value in kinds:
                return kinds[value]
    return None


def is_report(attributes: Mapping[str, object] | None) -> bool:
    """Whether a span with these start attributes only tells of a call that is over.

    The call is of the same parent and the same model, and has ended just before.
    """
    return attributes is not None and attributes.get(_REPORT[0]) == _REPORT[1]


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
