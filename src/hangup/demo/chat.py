"""OpenAI's dialect: chat completions."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hangup.demo.asked import Asked, event, tool_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hangup.demo.brain import Reply, ToolCall


class Chat:
    """``POST /v1/chat/completions``; usage at the end of a stream, if asked for."""

    path = "/v1/chat/completions"

    def asked(self, body: Mapping[str, Any]) -> Asked:
        """Read a request."""
        messages = body.get("messages", ())
        tools = [tool["function"] for tool in body.get("tools") or ()]
        return Asked(
            model=str(body["model"]),
            stream=bool(body.get("stream")),
            tells_usage=bool((body.get("stream_options") or {}).get("include_usage")),
            seed=body.get("seed"),
            most=body.get("max_completion_tokens") or body.get("max_tokens"),
            texts=(
                *(_text(message) for message in messages),
                *(tool_text(tool["name"], tool, "parameters") for tool in tools),
            ),
            tools=tuple(tool["name"] for tool in tools),
            rounds=sum(1 for message in messages if message.get("tool_calls")),
        )

    def shapes(self, number: int, model: str, reply: Reply) -> ChatShapes:
        """Return the reply in this dialect."""
        return ChatShapes(f"chatcmpl-{number:06d}", model, reply)

    def error(self, message: str) -> dict[str, Any]:
        """Return an error's body."""
        return {"error": {"message": message, "type": "demo_error", "code": None}}


@dataclass(frozen=True, slots=True)
class ChatShapes:
    """One reply as a chat completion.

    Attributes:
        id: The completion's id.
        model: The model's name, as requested.
        reply: What is said.
    """

    id: str
    model: str
    reply: Reply

    def whole(self) -> dict[str, Any]:
        """Return the response of a call that is not a stream."""
        choice = {
            "index": 0,
            "message": self._message(),
            "finish_reason": self._finish_reason(),
        }
        head = self._head("chat.completion")
        return {**head, "choices": [choice], "usage": self._usage()}

    def opening(self) -> bytes:
        """Return nothing: the first chunk is the first event."""
        return b""

    def chunk(self, index: int) -> bytes:
        """Return the stream's event for the reply's chunk ``index``."""
        delta: dict[str, Any] = {"role": "assistant"} if index == 0 else {}
        pieces = self.reply.arguments[index]
        if pieces:
            delta["tool_calls"] = [
                self._piece(index, place, text) for place, text in pieces
            ]
        elif not self.reply.tool_calls:
            delta["content"] = self.reply.texts[index]
        last = index == len(self.reply.chunks) - 1
        reason = self._finish_reason() if last else None
        choice = {"index": 0, "delta": delta, "finish_reason": reason}
        return event({**self._head("chat.completion.chunk"), "choices": [choice]})

    def closing(self, *, usage: bool) -> bytes:
        """Return the event that ``include_usage`` asks for, and the end."""
        done = b"data: [DONE]\n\n"
        if not usage:
            return done
        head = self._head("chat.completion.chunk")
        return event({**head, "choices": [], "usage": self._usage()}) + done

    def _head(self, kind: str) -> dict[str, Any]:
        created = int(time.time())
        return {"id": self.id, "object": kind, "created": created, "model": self.model}

    def _message(self) -> dict[str, Any]:
        calls = self.reply.tool_calls
        if not calls:
            return {"role": "assistant", "content": "".join(self.reply.texts)}
        whole = [
            self._call(place, call, call.arguments_json)
            for place, call in enumerate(calls)
        ]
        return {"role": "assistant", "content": None, "tool_calls": whole}

    def _call(self, place: int, call: ToolCall, arguments: str) -> dict[str, Any]:
        return {
            "id": f"call_{self.id}_{place}",
            "type": "function",
            "function": {"name": call.name, "arguments": arguments},
        }

    def _piece(self, index: int, place: int, text: str) -> dict[str, Any]:
        if self.reply.begins(index, place):
            call = self._call(place, self.reply.tool_calls[place], text)
            return {"index": place, **call}
        return {"index": place, "function": {"arguments": text}}

    def _finish_reason(self) -> str:
        return "tool_calls" if self.reply.tool_calls else "stop"

    def _usage(self) -> dict[str, int]:
        prompt, completion = self.reply.input_tokens, self.reply.output_tokens
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
        }


def _text(message: Mapping[str, Any]) -> str:
    """Return what the model reads of a message."""
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    asked = (f"{call['name']} {call['arguments']}" for call in calls)
    return " ".join([str(message.get("content") or ""), *asked]).strip()
