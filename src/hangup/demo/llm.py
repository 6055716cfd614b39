"""The demo agents' model calls: the real OpenAI client, tagged and seeded.

The user's tag travels as a plain header of the demo's own, so that the model
server's log tells whose call it was without any help from hangup.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from openai import AsyncOpenAI, omit

from hangup.demo.workload import (
    MODEL,
    PATH_HEADER,
    USER_HEADER,
    call_seed,
    most_tokens,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable, Mapping

    from openai.types.chat import (
        ChatCompletionMessage,
        ChatCompletionMessageParam,
        ChatCompletionToolParam,
    )

Messages = list["ChatCompletionMessageParam"]


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


class Model:
    """Chat completions for the steps of one question at a time."""

    def __init__(self, base_url: str) -> None:
        self._client = AsyncOpenAI(base_url=base_url, api_key="demo")

    async def ask(
        self,
        question: Question,
        path: str,
        messages: Iterable[ChatCompletionMessageParam],
        tools: Iterable[ChatCompletionToolParam] | None = None,
    ) -> ChatCompletionMessage:
        """Return the answer, whole."""
        completion = await self._client.chat.completions.create(
            model=MODEL,
            messages=messages,
            tools=omit if tools is None else tools,
            max_tokens=most_tokens(path),
            seed=call_seed(question.seed, path),
            extra_headers={**question.headers(), PATH_HEADER: path},
        )
        return completion.choices[0].message

    async def pieces(
        self,
        question: Question,
        path: str,
        messages: Iterable[ChatCompletionMessageParam],
    ) -> AsyncGenerator[str, None]:
        """Yield the answer piece by piece; usage is asked for."""
        stream = await self._client.chat.completions.create(
            model=MODEL,
            messages=messages,
            max_tokens=most_tokens(path),
            seed=call_seed(question.seed, path),
            stream=True,
            stream_options={"include_usage": True},
            extra_headers={**question.headers(), PATH_HEADER: path},
        )
        async with stream:
            async for chunk in stream:
                if chunk.choices and chunk.choices[0].delta.content:
                    yield chunk.choices[0].delta.content

    async def warm_up(self) -> None:
        """Make one call outside any run, so that first-call imports are done."""
        question = Question("warm-up", 0, "Are you there?")
        await self.ask(question, "plan 1", prompt("Answer briefly.", question.text))

    async def aclose(self) -> None:
        """Close the client's connections."""
        await self._client.close()


def prompt(instruction: str, *notes: str) -> Messages:
    """Return a system message and what it is about."""
    return [
        {"role": "system", "content": instruction},
        {"role": "user", "content": "\n\n".join(notes)},
    ]
