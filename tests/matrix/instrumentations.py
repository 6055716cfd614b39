"""How a user turns each instrumentation on, by the name it has in the matrix."""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from opentelemetry import metrics, trace

if TYPE_CHECKING:
    from collections.abc import Callable

_OTEL = "opentelemetry.instrumentation"


def _instrumentor(module: str, name: str) -> Callable[[], None]:
    def turn_on() -> None:
        getattr(import_module(module), name)().instrument(
            tracer_provider=trace.get_tracer_provider(),
            meter_provider=metrics.get_meter_provider(),
        )

    return turn_on


def _agents() -> None:
    # Its own exporter would send traces to OpenAI.
    import_module("agents").set_trace_processors([])
    _instrumentor(f"{_OTEL}.genai.openai_agents", "OpenAIAgentsInstrumentor")()


def _pydantic_ai() -> None:
    import_module("pydantic_ai").Agent.instrument_all()


def _logfire() -> None:
    import_module("logfire").instrument_openai()
    import_module("logfire").instrument_anthropic()


def _on_by_itself() -> None:
    """Do nothing: the library reports to the global provider."""


INSTRUMENTATIONS: dict[str, Callable[[], None]] = {
    "genai-openai": _instrumentor(f"{_OTEL}.genai.openai", "OpenAIInstrumentor"),
    "openai-v2": _instrumentor(f"{_OTEL}.openai_v2", "OpenAIInstrumentor"),
    "Traceloop openai": _instrumentor(f"{_OTEL}.openai", "OpenAIInstrumentor"),
    "openinference-openai": _instrumentor(
        "openinference.instrumentation.openai", "OpenAIInstrumentor"
    ),
    "anthropic native": _on_by_itself,
    "mcp native": _on_by_itself,
    "genai-anthropic": _instrumentor(
        f"{_OTEL}.genai.anthropic", "AnthropicInstrumentor"
    ),
    "Traceloop anthropic": _instrumentor(f"{_OTEL}.anthropic", "AnthropicInstrumentor"),
    "genai-langchain": _instrumentor(
        f"{_OTEL}.genai.langchain", "LangChainInstrumentor"
    ),
    "genai-openai-agents": _agents,
    "pydantic-ai": _pydantic_ai,
    "logfire": _logfire,
    "instrumentation-httpx": _instrumentor(f"{_OTEL}.httpx", "HTTPXClientInstrumentor"),
}


def set_up_provider(provider: Any, names: tuple[str, ...]) -> Any:
    """Make the global tracer provider of the process, and return it."""
    # What a user of the native spans alone has; others turn them off by not asking.
    if "anthropic native" not in names:
        os.environ["ANTHROPIC_OPEN_TELEMETRY"] = "false"
    if "logfire" not in names:
        trace.set_tracer_provider(provider)
        return provider
    import_module("logfire").configure(send_to_logfire=False, console=False)
    return trace.get_tracer_provider()
