"""Anthropic's dialect: messages.

A stream opens with the input and a placeholder for the output; its ``message_delta``
at the end tells both, cumulatively.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hangup.demo.asked import Asked, event, tool_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hangup.demo.brain import Reply

_PLACEHOLDER = 1
"""Output tokens that ``message_start`` claims."""


class Messages:
    """``POST /v1/messages``."""

    path = "/v1/messages"

    def asked(self, body: Mapping[str, Any]) -> Asked:
        """Read a request; the API has no ``seed``."""
        tools = body.get("tools") or ()
        choice = (body.get("tool_choice") or {}).get("type")
        turns = [_blocks(message) for message in body.get("messages", ())]
        system = _blocks({"content": body.get("system") or []})
        return Asked(
            model=str(body["model"]),
            stream=bool(body.get("stream")),
            most=body.get("max_tokens"),
            texts=(
                *(
                    " ".join(map(_text, blocks))
                    for blocks in [system, *turns]
                    if blocks
                ),
                *(tool_text(tool["name"], tool, "input_schema") for tool in tools),
            ),
            tools=tuple(tool["name"] for tool in tools if choice != "none"),
            rounds=sum(
                any(block.get("type") == "tool_use" for block in blocks)
                for blocks in turns
            ),
        )

    def shapes(self, number: int, model: str, reply: Reply) -> MessageShapes:
        """Return the reply in this dialect."""
        return MessageShapes(f"msg_{number:06d}", model, reply)

    def error(self, message: str) -> dict[str, Any]:
        """Return an error's body."""
        return {"type": "error", "error": {"type": "api_error", "message": message}}


@dataclass(frozen=True, slots=True)
class MessageShapes:
    """One reply as a message.

    Attributes:
        id: The message's id.
        model: The model's name, as requested.
        reply: What is said.
    """

    id: str
    model: str
    reply: Reply

    def whole(self) -> dict[str, Any]:
        """Return the response of a call that is not a stream."""
        content: list[dict[str, Any]] = [
            {**self._tool_use(place), "input": dict(call.arguments)}
            for place, call in enumerate(self.reply.tool_calls)
        ]
        if not content:
            content = [{"type": "text", "text": "".join(self.reply.texts)}]
        usage = self._usage(self.reply.output_tokens)
        return self._message(content, self._stop_reason(), usage)

    def opening(self) -> bytes:
        """Return ``message_start``, with the input and a placeholder for output."""
        start = self._message([], None, self._usage(_PLACEHOLDER))
        opening = _named("message_start", message=start)
        if not self.reply.tool_calls:
            opening += self._block_start(0, {"type": "text", "text": ""})
        return opening + _named("ping")

    def chunk(self, index: int) -> bytes:
        """Return the events of the reply's chunk ``index``."""
        if not self.reply.tool_calls:
            return self._delta(0, type="text_delta", text=self.reply.texts[index])
        return b"".join(self._arguments(index))

    def closing(self, *, usage: bool) -> bytes:
        """Return the end of the last block, the usage, the end."""
        del usage  # always told
        last = max(0, len(self.reply.tool_calls) - 1)
        return (
            _named("content_block_stop", index=last)
            + _named(
                "message_delta",
                delta={"stop_reason": self._stop_reason(), "stop_sequence": None},
                usage=self._usage(self.reply.output_tokens),
            )
            + _named("message_stop")
        )

    def _arguments(self, index: int) -> Iterator[bytes]:
        for place, text in self.reply.arguments[index]:
            if self.reply.begins(index, place):
                if place:
                    yield _named("content_block_stop", index=place - 1)
                yield self._block_start(place, {**self._tool_use(place), "input": {}})
            yield self._delta(place, type="input_json_delta", partial_json=text)

    def _block_start(self, place: int, block: Mapping[str, Any]) -> bytes:
        return _named("content_block_start", index=place, content_block=block)

    def _delta(self, place: int, **delta: str) -> bytes:
        return _named("content_block_delta", index=place, delta=delta)

    def _tool_use(self, place: int) -> dict[str, Any]:
        name = self.reply.tool_calls[place].name
        return {"type": "tool_use", "id": f"toolu_{self.id}_{place}", "name": name}

    def _message(
        self, content: list[dict[str, Any]], reason: str | None, usage: dict[str, int]
    ) -> dict[str, Any]:
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": content,
            "stop_reason": reason,
            "stop_sequence": None,
            "usage": usage,
        }

    def _stop_reason(self) -> str:
        return "tool_use" if self.reply.tool_calls else "end_turn"

    def _usage(self, output: int) -> dict[str, int]:
        return {
            "input_tokens": self.reply.input_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": output,
        }


def _named(name: str, **data: Any) -> bytes:
    return event({"type": name, **data}, name)


def _blocks(message: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the content as blocks; a plain text is one block."""
    content = message["content"]
    return [{"text": content}] if isinstance(content, str) else list(content)


def _text(block: Mapping[str, Any]) -> str:
    """Return what the model reads of a block."""
    parts = (block.get(key) for key in ("text", "name", "input", "content"))
    return " ".join(str(part) for part in parts if part)
