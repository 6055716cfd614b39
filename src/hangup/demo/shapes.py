"""The JSON of the chat completions API, for one planned reply."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hangup.demo.brain import Reply


@dataclass(frozen=True, slots=True)
class Shapes:
    """One reply in the forms a client may ask for.

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

    def chunk(self, index: int) -> dict[str, Any]:
        """Return the stream's event for the reply's chunk ``index``."""
        delta: dict[str, Any] = {"role": "assistant"} if index == 0 else {}
        if not self.reply.tool_calls:
            delta["content"] = self.reply.texts[index]
        elif index == 0:
            # All of them at once: the tokens still take their time to come.
            delta["tool_calls"] = [
                {"index": place, **call} for place, call in enumerate(self._calls())
            ]
        last = index == len(self.reply.chunks) - 1
        reason = self._finish_reason() if last else None
        choice = {"index": 0, "delta": delta, "finish_reason": reason}
        return {**self._head("chat.completion.chunk"), "choices": [choice]}

    def usage_chunk(self) -> dict[str, Any]:
        """Return the event that ``stream_options.include_usage`` asks for."""
        head = self._head("chat.completion.chunk")
        return {**head, "choices": [], "usage": self._usage()}

    def _head(self, kind: str) -> dict[str, Any]:
        created = int(time.time())
        return {"id": self.id, "object": kind, "created": created, "model": self.model}

    def _message(self) -> dict[str, Any]:
        if not self.reply.tool_calls:
            return {"role": "assistant", "content": "".join(self.reply.texts)}
        return {"role": "assistant", "content": None, "tool_calls": self._calls()}

    def _calls(self) -> list[dict[str, Any]]:
        return [
            {
                "id": f"call_{self.id}_{index}",
                "type": "function",
                "function": {
                    "name": call.name,
                    "arguments": json.dumps(dict(call.arguments)),
                },
            }
            for index, call in enumerate(self.reply.tool_calls)
        ]

    def _finish_reason(self) -> str:
        return "tool_calls" if self.reply.tool_calls else "stop"

    def _usage(self) -> dict[str, int]:
        prompt, completion = self.reply.input_tokens, self.reply.output_tokens
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
        }


def error(message: str) -> dict[str, Any]:
    """Return an error's body."""
    return {"error": {"message": message, "type": "demo_error", "code": None}}
