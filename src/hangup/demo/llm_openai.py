"""The real OpenAI client as the demo's model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from openai import AsyncOpenAI, omit

from hangup.demo.llm import TOOL_SCHEMA, Question, Said, Talk, ToolUse
from hangup.demo.workload import MODELS, call_seed, most_tokens

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from openai.types.chat import (
        ChatCompletionFunctionToolParam,
        ChatCompletionMessageParam,
    )

_MODEL = MODELS["openai"]


class OpenAIModel:
    """Chat completions; streams ask for their usage."""

    def __init__(self, base_url: str) -> None:
        self._client = AsyncOpenAI(base_url=base_url, api_key="demo")

    async def ask(
        self, question: Question, path: str, talk: Talk, tools: Sequence[str] = ()
    ) -> Said:
        """Return the answer, whole."""
        completion = await self._client.chat.completions.create(
            model=_MODEL,
            messages=_messages(talk),
            tools=[_tool(name) for name in tools] or omit,
            max_tokens=most_tokens(path),
            seed=call_seed(question.seed, path),
            extra_headers=question.model_headers(path),
        )
        message = completion.choices[0].message
        uses = tuple(
            ToolUse(call.id, call.function.name, call.function.arguments)
            for call in message.tool_calls or ()
            if call.type == "function"
        )
        return Said(message.content or "", uses)

    async def pieces(
        self, question: Question, path: str, talk: Talk
    ) -> AsyncGenerator[str, None]:
        """Yield the answer piece by piece."""
        stream = await self._client.chat.completions.create(
            model=_MODEL,
            messages=_messages(talk),
            max_tokens=most_tokens(path),
            seed=call_seed(question.seed, path),
            stream=True,
            stream_options={"include_usage": True},
            extra_headers=question.model_headers(path),
        )
        async with stream:
            async for chunk in stream:
                if chunk.choices and chunk.choices[0].delta.content:
                    yield chunk.choices[0].delta.content

    async def aclose(self) -> None:
        """Close the client's connections."""
        await self._client.close()


def _messages(talk: Talk) -> list[ChatCompletionMessageParam]:
    messages: list[ChatCompletionMessageParam] = [
        {"role": "system", "content": talk.instruction},
        {"role": "user", "content": talk.text},
    ]
    for said, findings in talk.rounds:
        messages.append(
            {
                "role": "assistant",
                "tool_calls": [
                    {
                        "id": use.id,
                        "type": "function",
                        "function": {"name": use.name, "arguments": use.arguments},
                    }
                    for use in said.tools
                ],
            }
        )
        messages += [
            {"role": "tool", "tool_call_id": use.id, "content": found}
            for use, found in zip(said.tools, findings, strict=True)
        ]
    return messages


def _tool(name: str) -> ChatCompletionFunctionToolParam:
    return {"type": "function", "function": {"name": name, "parameters": TOOL_SCHEMA}}
