"""The real Anthropic client as the demo's model."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from anthropic import AsyncAnthropic, omit

from hangup.demo.llm import TOOL_SCHEMA, Question, Said, Talk, ToolUse
from hangup.demo.workload import MODELS, TOOLS, most_tokens

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from anthropic import Omit
    from anthropic.types import MessageParam, ToolChoiceNoneParam, ToolParam

_MODEL = MODELS["anthropic"]


class AnthropicModel:
    """Messages."""

    def __init__(self, base_url: str) -> None:
        self._client = AsyncAnthropic(base_url=base_url, api_key="demo")

    async def ask(
        self, question: Question, path: str, talk: Talk, tools: Sequence[str] = ()
    ) -> Said:
        """Return the answer, whole."""
        message = await self._client.messages.create(
            model=_MODEL,
            system=talk.instruction,
            messages=_messages(talk),
            tools=[_tool(name) for name in tools or _used(talk)] or omit,
            tool_choice=omit if tools else _no_more(talk),
            max_tokens=most_tokens(path),
            extra_headers=question.model_headers(path),
        )
        text = "".join(block.text for block in message.content if block.type == "text")
        uses = tuple(
            ToolUse(block.id, block.name, json.dumps(block.input))
            for block in message.content
            if block.type == "tool_use"
        )
        return Said(text, uses)

    async def pieces(
        self, question: Question, path: str, talk: Talk
    ) -> AsyncGenerator[str, None]:
        """Yield the answer piece by piece."""
        stream = await self._client.messages.create(
            model=_MODEL,
            system=talk.instruction,
            messages=_messages(talk),
            tools=[_tool(name) for name in _used(talk)] or omit,
            tool_choice=_no_more(talk),
            max_tokens=most_tokens(path),
            stream=True,
            extra_headers=question.model_headers(path),
        )
        async with stream:
            async for event in stream:
                if (
                    event.type == "content_block_delta"
                    and event.delta.type == "text_delta"
                ):
                    yield event.delta.text

    async def aclose(self) -> None:
        """Close the client's connections."""
        await self._client.close()


def _messages(talk: Talk) -> list[MessageParam]:
    messages: list[MessageParam] = [{"role": "user", "content": talk.text}]
    for said, findings in talk.rounds:
        messages += [
            {
                "role": "assistant",
                "content": [
                    {
                        "type": "tool_use",
                        "id": use.id,
                        "name": use.name,
                        "input": json.loads(use.arguments),
                    }
                    for use in said.tools
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": use.id, "content": found}
                    for use, found in zip(said.tools, findings, strict=True)
                ],
            },
        ]
    return messages


def _tool(name: str) -> ToolParam:
    return {"name": name, "input_schema": TOOL_SCHEMA}


def _used(talk: Talk) -> Sequence[str]:
    """Return the tools that must be named because the talk has used some."""
    return TOOLS if talk.rounds else ()


def _no_more(talk: Talk) -> ToolChoiceNoneParam | Omit:
    """Forbid the tools that are only named."""
    return {"type": "none"} if talk.rounds else omit
