"""The four wire formats, each as the real provider sends it.

A dialect is two functions of the request and the script: ``whole`` returns the body of
an answer, ``stream`` yields its events. An event is its bytes, the output tokens that
were generated for it, and whether it tells the usage. Shapes and conventions follow the
providers' API references: OpenAI chat sends usage in a last chunk without choices, and
only if asked; Responses with the completed response; Anthropic sends the input in
``message_start`` and a cumulative output in ``message_delta``, caches beside the input;
Gemini cumulative counts with every chunk, thoughts beside the candidates.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from support.providers.script import ToolCall

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from support.providers.script import Script

Body = dict[str, Any]


class Event(NamedTuple):
    """A piece of a stream."""

    data: bytes
    tokens: int = 0
    tells: bool = False


class Dialect(Protocol):
    """One wire format."""

    name: str

    def whole(self, asked: Mapping[str, Any], script: Script) -> Body: ...

    def stream(self, asked: Mapping[str, Any], script: Script) -> Iterator[Event]: ...


def sse(body: Mapping[str, Any], *, named: bool = False) -> bytes:
    """Encode a server-sent event."""
    head = f"event: {body['type']}\n" if named else ""
    return f"{head}data: {json.dumps(body)}\n\n".encode()


def tools_called(
    asked: Mapping[str, Any], script: Script, answer: str
) -> tuple[ToolCall, ...]:
    """Return the tools to call: the script's own, or the one that it names.

    That one is called where it is offered and has not answered yet.

    Args:
        asked: The request.
        script: The script.
        answer: What marks the answer of a tool in this dialect.
    """
    if script.calls or script.tool is None:
        return script.calls
    offered = json.dumps(asked.get("tools") or ())
    turns = json.dumps(asked.get("messages") or asked.get("input") or ())
    wanted = f'"{script.tool}"' in offered and answer not in turns
    return (ToolCall("call_1", script.tool),) if wanted else ()


class OpenAIChat:
    """POST /chat/completions."""

    name = "openai.chat"

    def whole(self, asked: Mapping[str, Any], script: Script) -> Body:
        calling = tools_called(asked, script, '"role": "tool"')
        message: Body = {"role": "assistant", "content": script.text}
        if calling:
            calls = [self._call(call) for call in calling]
            message |= {"content": None, "tool_calls": calls}
        reason = "tool_calls" if calling else "stop"
        choice = {"index": 0, "message": message, "finish_reason": reason}
        return {
            **self._head(asked, "chat.completion"),
            "choices": [choice],
            "usage": self._usage(script),
        }

    def stream(self, asked: Mapping[str, Any], script: Script) -> Iterator[Event]:
        head = self._head(asked, "chat.completion.chunk")
        include = bool((asked.get("stream_options") or {}).get("include_usage"))
        if include:
            head["usage"] = None

        def chunk(delta: Body, reason: str | None = None) -> bytes:
            choice = {"index": 0, "delta": delta, "finish_reason": reason}
            return sse({**head, "choices": [choice]})

        calling = tools_called(asked, script, '"role": "tool"')
        yield Event(chunk({"role": "assistant", "content": ""}), script.reasoning)
        for index, call in enumerate(calling):
            delta = {"tool_calls": [{"index": index, **self._call(call)}]}
            yield Event(chunk(delta), 0 if index else script.visible)
        if not calling:
            for text, count in script.pieces():
                yield Event(chunk({"content": text}), count)
        yield Event(chunk({}, "tool_calls" if calling else "stop"))
        if include:
            last = {**head, "choices": [], "usage": self._usage(script)}
            yield Event(sse(last), tells=True)
        yield Event(b"data: [DONE]\n\n")

    @staticmethod
    def _call(call: ToolCall) -> Body:
        function = {"name": call.name, "arguments": call.arguments}
        return {"id": call.id, "type": "function", "function": function}

    @staticmethod
    def _head(asked: Mapping[str, Any], kind: str) -> Body:
        model = asked["model"]
        return {"id": "chatcmpl-1", "object": kind, "created": 1, "model": model}

    @staticmethod
    def _usage(script: Script) -> Body:
        return {
            "prompt_tokens": script.input,
            "completion_tokens": script.tokens,
            "total_tokens": script.input + script.tokens,
            "prompt_tokens_details": {"cached_tokens": script.cache_read},
            "completion_tokens_details": {"reasoning_tokens": script.reasoning},
        }


class OpenAIResponses:
    """POST /responses."""

    name = "openai.responses"

    def whole(self, asked: Mapping[str, Any], script: Script) -> Body:
        return self._response(asked, "completed", script, self._items(asked, script))

    def stream(self, asked: Mapping[str, Any], script: Script) -> Iterator[Event]:
        number = iter(range(1_000_000))

        def event(kind: str, **fields: Any) -> bytes:
            body = {"type": f"response.{kind}", "sequence_number": next(number)}
            return sse(body | fields, named=True)

        items = self._items(asked, script)
        begun = self._response(asked, "in_progress", None, [])
        yield Event(event("created", response=begun), script.reasoning)
        for index, item in enumerate(items):
            place: Body = {"output_index": index, "item_id": item["id"]}
            if item["type"] == "function_call":
                empty = item | {"arguments": "", "status": "in_progress"}
                yield Event(event("output_item.added", output_index=index, item=empty))
                name, done = "function_call_arguments", item["arguments"]
                delta = event(f"{name}.delta", **place, delta=done)
                yield Event(delta, 0 if index else script.visible)
                yield Event(event(f"{name}.done", **place, arguments=done))
            else:
                empty = {**item, "content": [], "status": "in_progress"}
                yield Event(event("output_item.added", output_index=index, item=empty))
                place |= {"content_index": 0}
                part: Body = {"type": "output_text", "text": "", "annotations": []}
                yield Event(event("content_part.added", **place, part=part))
                for text, count in script.pieces():
                    delta = event("output_text.delta", **place, delta=text, logprobs=[])
                    yield Event(delta, count)
                text_done = event(
                    "output_text.done", **place, text=script.text, logprobs=[]
                )
                yield Event(text_done)
                part = item["content"][0]
                yield Event(event("content_part.done", **place, part=part))
            yield Event(event("output_item.done", output_index=index, item=item))
        whole = self._response(asked, "completed", script, items)
        yield Event(event("completed", response=whole), tells=True)

    @staticmethod
    def _items(asked: Mapping[str, Any], script: Script) -> list[Body]:
        calling = tools_called(asked, script, '"function_call_output"')
        if calling:
            return [
                {
                    "type": "function_call",
                    "id": f"fc_{index}",
                    "call_id": call.id,
                    "name": call.name,
                    "arguments": call.arguments,
                    "status": "completed",
                }
                for index, call in enumerate(calling)
            ]
        part = {"type": "output_text", "text": script.text, "annotations": []}
        message = {
            "type": "message",
            "id": "msg_1",
            "role": "assistant",
            "status": "completed",
            "content": [part],
        }
        return [message]

    @staticmethod
    def _response(
        asked: Mapping[str, Any],
        status: str,
        script: Script | None,
        items: list[Body],
    ) -> Body:
        usage = None if script is None else OpenAIResponses._usage(script)
        return {
            "id": "resp_1",
            "object": "response",
            "created_at": 1,
            "status": status,
            "model": asked["model"],
            "error": None,
            "incomplete_details": None,
            "instructions": None,
            "metadata": {},
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": asked.get("tools") or [],
            "temperature": 1.0,
            "top_p": 1.0,
            "output": items,
            "usage": usage,
        }

    @staticmethod
    def _usage(script: Script) -> Body:
        cached = {"cached_tokens": script.cache_read, "cache_write_tokens": 0}
        return {
            "input_tokens": script.input,
            "input_tokens_details": cached,
            "output_tokens": script.tokens,
            "output_tokens_details": {"reasoning_tokens": script.reasoning},
            "total_tokens": script.input + script.tokens,
        }


class Anthropic:
    """POST /messages."""

    name = "anthropic"

    def whole(self, asked: Mapping[str, Any], script: Script) -> Body:
        message = self._message(asked, script, script.tokens)
        calling = tools_called(asked, script, '"tool_result"')
        content: list[Body] = [{"type": "text", "text": script.text}]
        if calling:
            content = [
                {**self._call(call), "input": json.loads(call.arguments)}
                for call in calling
            ]
        reason = "tool_use" if calling else "end_turn"
        return {**message, "content": content, "stop_reason": reason}

    def stream(self, asked: Mapping[str, Any], script: Script) -> Iterator[Event]:
        def event(kind: str, **fields: Any) -> bytes:
            return sse({"type": kind, **fields}, named=True)

        # The output that message_start tells is a placeholder.
        start = self._message(asked, script, min(1, script.tokens))
        yield Event(event("message_start", message=start), script.reasoning, tells=True)
        calling = tools_called(asked, script, '"tool_result"')
        for index, call in enumerate(calling):
            block = {**self._call(call), "input": {}}
            yield Event(event("content_block_start", index=index, content_block=block))
            delta = {"type": "input_json_delta", "partial_json": call.arguments}
            piece = event("content_block_delta", index=index, delta=delta)
            yield Event(piece, 0 if index else script.visible)
            yield Event(event("content_block_stop", index=index))
        if not calling:
            block = {"type": "text", "text": ""}
            yield Event(event("content_block_start", index=0, content_block=block))
            yield Event(event("ping"))
            for text, count in script.pieces():
                delta = {"type": "text_delta", "text": text}
                yield Event(event("content_block_delta", index=0, delta=delta), count)
            yield Event(event("content_block_stop", index=0))
        reason = "tool_use" if calling else "end_turn"
        end: Body = {"stop_reason": reason, "stop_sequence": None}
        usage = {"output_tokens": script.tokens}
        yield Event(event("message_delta", delta=end, usage=usage), tells=True)
        yield Event(event("message_stop"))

    @staticmethod
    def _call(call: ToolCall) -> Body:
        return {"type": "tool_use", "id": call.id, "name": call.name}

    @staticmethod
    def _message(asked: Mapping[str, Any], script: Script, output: int) -> Body:
        cached = script.cache_read + script.cache_write
        return {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": asked["model"],
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {
                "input_tokens": script.input - cached,
                "cache_read_input_tokens": script.cache_read,
                "cache_creation_input_tokens": script.cache_write,
                "output_tokens": output,
            },
        }


class Gemini:
    """POST /models/NAME:generateContent and :streamGenerateContent."""

    name = "gemini"

    def whole(self, asked: Mapping[str, Any], script: Script) -> Body:
        return self._answer(asked, script, script.text, script.visible, "STOP")

    def stream(self, asked: Mapping[str, Any], script: Script) -> Iterator[Event]:
        done = 0
        for text, count in script.pieces():
            thought = 0 if done else script.reasoning
            done += count
            reason = "STOP" if done == script.visible else None
            answer = self._answer(asked, script, text, done, reason)
            yield Event(sse(answer), count + thought, tells=True)

    @staticmethod
    def _answer(
        asked: Mapping[str, Any],
        script: Script,
        text: str,
        done: int,
        reason: str | None,
    ) -> Body:
        content = {"role": "model", "parts": [{"text": text}]}
        candidate: Body = {"content": content, "index": 0}
        if reason is not None:
            candidate["finishReason"] = reason
        usage: Body = {
            "promptTokenCount": script.input,
            "candidatesTokenCount": done,
            "totalTokenCount": script.input + done + script.reasoning,
        }
        if script.reasoning:
            usage["thoughtsTokenCount"] = script.reasoning
        if script.cache_read:
            usage["cachedContentTokenCount"] = script.cache_read
        return {
            "candidates": [candidate],
            "usageMetadata": usage,
            "modelVersion": asked["model"],
            "responseId": "r1",
        }
