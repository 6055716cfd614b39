"""What the demo's agents say to a model, whoever provides it.

The user's tag travels as a plain header of the demo's own, so that the model
server's log tells whose call it was without any help from hangup.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, Self

from hangup.demo.workload import (
    PATH_HEADER,
    SEED_HEADER,
    USER_HEADER,
    call_seed,
    plan_path,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence

TOOL_SCHEMA: dict[str, object] = {
    "type": "object",
    "properties": {"topic": {"type": "string"}},
}
"""What every tool of the demo takes."""


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked, by whom, and the seed of everything that follows."""

    user: str
    seed: int
    text: str

    @classmethod
    def of(cls, headers: Mapping[str, str], body: Mapping[str, Any]) -> Self:
        """Read a request of :mod:`hangup.demo.users` or of the agent."""
        return cls(headers[USER_HEADER], int(body["seed"]), str(body["question"]))

    def headers(self) -> dict[str, str]:
        """Return the headers that carry the tag on."""
        return {USER_HEADER: self.user}

    def body(self) -> dict[str, Any]:
        """Return the JSON that carries the rest on."""
        return {"seed": self.seed, "question": self.text}

    def model_headers(self, path: str) -> dict[str, str]:
        """Return the headers of the model call at ``path``."""
        seed = str(call_seed(self.seed, path))
        return {**self.headers(), PATH_HEADER: path, SEED_HEADER: seed}


@dataclass(frozen=True, slots=True)
class ToolUse:
    """A tool that the model asks for; ``arguments`` is a JSON object."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Said:
    """One whole answer of the model: a text, or tools to use."""

    text: str
    tools: tuple[ToolUse, ...] = ()


@dataclass(frozen=True, slots=True)
class Talk:
    """A conversation with the model.

    Attributes:
        instruction: The system's.
        text: What it is about.
        rounds: What the model then asked for, each with what its tools found.
    """

    instruction: str
    text: str
    rounds: list[tuple[Said, Sequence[str]]] = field(default_factory=list)


class Model(Protocol):
    """A provider's client, for the steps of one question at a time."""

    async def ask(
        self, question: Question, path: str, talk: Talk, tools: Sequence[str] = ()
    ) -> Said:
        """Return the answer, whole; it may ask for one of the tools."""
        ...

    def pieces(
        self, question: Question, path: str, talk: Talk
    ) -> AsyncGenerator[str, None]:
        """Yield the answer piece by piece."""
        ...

    async def aclose(self) -> None:
        """Close the client's connections."""
        ...


def model_of(provider: str, url: str) -> Model:
    """Return the client of a provider, whose server is at ``url``.

    Only that provider's package is imported.
    """
    if provider == "anthropic":
        from hangup.demo.llm_anthropic import AnthropicModel  # noqa: PLC0415

        return AnthropicModel(url)
    from hangup.demo.llm_openai import OpenAIModel  # noqa: PLC0415

    return OpenAIModel(f"{url}/v1")


async def warm_up(model: Model) -> None:
    """Make one call outside any run, so that first-call imports are done."""
    question = Question("warm-up", 0, "Are you there?")
    await model.ask(question, plan_path(1), Talk("Answer briefly.", question.text))
