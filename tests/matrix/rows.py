"""The rows of the matrix: which client, watched by which instrumentations, and where.

``ENVIRONMENTS`` names the pinned lists in ``requirements/``; they are the one place
where versions stand.
"""

from __future__ import annotations

from dataclasses import dataclass

MAIN = "main"


@dataclass(frozen=True, slots=True)
class Row:
    """One combination.

    Attributes:
        client: A key of ``clients.CALLERS``, or ``MCP``.
        watched_by: Keys of ``instrumentations.INSTRUMENTATIONS``.
        environment: The pinned list it runs with.
        calls: Model calls that one run of the client makes.
        tool: Whether the first of them asks for a tool.
        thinks: Whether the model does, unseen; without usage nobody can know.
        threads: Whether it waits in threads, which nobody can interrupt: a stop is
            noticed with the next piece of the answer.
        makes_of_stop: What else than the stop the library raises when refused.
    """

    client: str
    watched_by: tuple[str, ...] = ()
    environment: str = MAIN
    calls: int = 1
    tool: bool = False
    thinks: bool = True
    threads: bool = False
    makes_of_stop: str = ""

    @property
    def name(self) -> str:
        """How the row is called."""
        return f"{self.client} / {' + '.join(self.watched_by) or 'nothing'}"


PACKAGES = {
    "genai-openai": "opentelemetry-instrumentation-genai-openai",
    "openai-v2": "opentelemetry-instrumentation-openai-v2",
    "Traceloop openai": "opentelemetry-instrumentation-openai",
    "openinference-openai": "openinference-instrumentation-openai",
    "anthropic native": "anthropic",
    "genai-anthropic": "opentelemetry-instrumentation-genai-anthropic",
    "Traceloop anthropic": "opentelemetry-instrumentation-anthropic",
    "genai-langchain": "opentelemetry-instrumentation-genai-langchain",
    "genai-openai-agents": "opentelemetry-instrumentation-genai-openai-agents",
    "pydantic-ai": "pydantic-ai-slim",
    "logfire": "logfire",
    "instrumentation-httpx": "opentelemetry-instrumentation-httpx",
    "mcp native": "mcp",
}
"""Which package each instrumentation is in."""
CHAT = "openai chat"
BARE = "openai chat, usage not asked for"
RESPONSES = "openai Responses"
GEMINI = "httpx, Gemini"
MCP = "mcp"
# langchain takes a stop, as any cancellation, for the answer of the model.
_MUDDLED = "AttributeError: 'Stop' object has no attribute 'generations'"
ROWS = (
    Row(CHAT, ("genai-openai",)),
    Row(BARE, ("genai-openai",), thinks=False),
    Row("openai chat, in threads", ("genai-openai",), threads=True),
    Row(RESPONSES, ("genai-openai",)),
    Row(CHAT, ("openai-v2",), "openai-v2"),
    Row(CHAT, ("Traceloop openai",)),
    Row(RESPONSES, ("Traceloop openai",)),
    Row(CHAT, ("openinference-openai",)),
    Row(RESPONSES, ("openinference-openai",)),
    Row(CHAT, ("logfire",)),
    Row(RESPONSES, ("logfire",)),
    Row("anthropic", ("anthropic native",)),
    Row("anthropic", ("genai-anthropic",)),
    Row("anthropic", ("Traceloop anthropic",)),
    Row("anthropic, stream not entered", ("Traceloop anthropic",)),
    Row("anthropic", ("anthropic native", "genai-anthropic")),
    Row("anthropic", ("anthropic native", "Traceloop anthropic")),
    Row("anthropic", ("anthropic native", "logfire")),
    Row("langchain-openai", ("genai-langchain",), makes_of_stop=_MUDDLED),
    Row(
        "langchain-openai", ("genai-langchain", "genai-openai"), makes_of_stop=_MUDDLED
    ),
    Row(
        "langchain agent",
        ("genai-langchain",),
        calls=2,
        tool=True,
        makes_of_stop=_MUDDLED,
    ),
    Row(
        "langchain agent",
        ("genai-langchain", "genai-openai"),
        calls=2,
        tool=True,
        makes_of_stop=_MUDDLED,
    ),
    Row("openai-agents", ("genai-openai-agents",), calls=2, tool=True),
    Row("openai-agents", ("genai-openai-agents", "genai-openai"), calls=2, tool=True),
    Row("pydantic-ai", ("pydantic-ai",), calls=2, tool=True),
    Row("pydantic-ai", ("pydantic-ai", "genai-openai"), calls=2, tool=True),
    Row("pydantic-ai", ("pydantic-ai", "logfire"), calls=2, tool=True),
    Row("httpx", ("instrumentation-httpx",)),
    Row(GEMINI, ("instrumentation-httpx",)),
    Row("httpx2"),
    Row(CHAT),
    Row(MCP, ("mcp native",)),
)


def row_named(name: str) -> Row:
    """Return the row of that name."""
    [found] = [row for row in ROWS if row.name == name]
    return found


def groups() -> list[list[Row]]:
    """Return the rows that can share a process: those watched by the same."""
    found: dict[tuple[str, tuple[str, ...]], list[Row]] = {}
    for row in ROWS:
        found.setdefault((row.environment, row.watched_by), []).append(row)
    return list(found.values())
