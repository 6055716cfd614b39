"""The model's endpoint, driven by hand: no server, no socket, nothing to wait for."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from hangup.demo.brain import Script, ToolCall
from hangup.demo.chat import Chat
from hangup.demo.completions import Completions
from hangup.demo.journal import ModelLog
from hangup.demo.messages import Messages

if TYPE_CHECKING:
    from hangup.demo.asked import Dialect
    from hangup.demo.workload import OnClose

_FAST = Script(rate=1e9, first_token=0.0)
"""All tokens at once."""
_NEVER = Script(first_token=3600.0, jitter=0.0)
"""The first token after an hour: whoever leaves, leaves before it."""


class Caller:
    """One request, and what came back."""

    def __init__(self, **body: Any) -> None:
        self.gone = asyncio.Event()
        self.body = {
            "model": "m",
            "messages": [{"role": "user", "content": "one two three"}],
            **body,
        }
        self.headers = [(b"x-demo-user", b"somebody"), (b"x-demo-path", b"plan 1")]
        self.status = 0
        self.received = b""
        self._asked = False

    async def call(self, app: Completions) -> None:
        scope = {"type": "http", "headers": self.headers, "method": "POST"}
        await app(scope, self._receive, self._send)

    async def _receive(self) -> dict[str, Any]:
        if not self._asked:
            self._asked = True
            body = json.dumps(self.body).encode()
            return {"type": "http.request", "body": body, "more_body": False}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        self.status = message.get("status", self.status)
        self.received += message.get("body", b"")

    @property
    def json(self) -> dict[str, Any]:
        return dict(json.loads(self.received))

    @property
    def events(self) -> list[dict[str, Any]]:
        lines = self.received.decode().split("\n\n")
        return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]


def _app(
    script: Script = _FAST,
    on_close: OnClose = "stop",
    dialect: Dialect | None = None,
) -> Completions:
    return Completions(ModelLog(), lambda _model: script, dialect, on_close=on_close)


_DIALECTS = pytest.mark.parametrize("dialect", [Chat(), Messages()])


def _answered(caller: Caller, app: Completions) -> ModelLog:
    asyncio.run(caller.call(app))
    return app._log


def _hung_up(caller: Caller, app: Completions) -> ModelLog:
    async def leave() -> None:
        calling = asyncio.create_task(caller.call(app))
        await app._log.opened_count(1)
        caller.gone.set()
        await calling

    asyncio.run(leave())
    return app._log


def test_a_whole_answer_carries_what_the_log_says_was_generated() -> None:
    caller = Caller()
    (record,) = _answered(caller, _app()).calls
    usage = caller.json["usage"]
    assert usage["prompt_tokens"] == record.input_tokens
    assert usage["completion_tokens"] == record.output_tokens
    assert usage["total_tokens"] == record.total_tokens
    assert (record.usage_sent, record.cut) == (True, False)


def test_the_log_knows_the_caller_by_plain_headers() -> None:
    (record,) = _answered(Caller(), _app()).calls
    assert (record.user, record.path, record.model) == ("somebody", "plan 1", "m")


def test_the_times_in_the_log_are_in_order() -> None:
    (record,) = _answered(Caller(stream=True), _app()).calls
    times = [record.opened, *(at for at, _ in record.chunks), record.closed]
    assert times == sorted(times, key=lambda at: at or 0.0)
    assert record.ended is not None
    assert record.closed is not None
    assert record.ended >= record.closed


def test_a_stream_says_its_usage_only_when_asked() -> None:
    silent = Caller(stream=True)
    (record,) = _answered(silent, _app()).calls
    assert all("usage" not in event for event in silent.events)
    assert not record.usage_sent

    told = Caller(stream=True, stream_options={"include_usage": True})
    (record,) = _answered(told, _app()).calls
    assert told.events[-1]["usage"]["total_tokens"] == record.total_tokens
    assert told.events[-1]["choices"] == []
    assert record.usage_sent


def test_a_stream_is_the_same_text_as_the_whole_answer() -> None:
    whole, stream = Caller(seed=7), Caller(seed=7, stream=True)
    _answered(whole, _app())
    _answered(stream, _app())
    pieces = [event["choices"][0]["delta"]["content"] for event in stream.events]
    assert "".join(pieces) == whole.json["choices"][0]["message"]["content"]
    assert stream.received.endswith(b"data: [DONE]\n\n")


@_DIALECTS
def test_a_header_seeds_a_request_whatever_its_dialect(dialect: Dialect) -> None:
    app = _app(dialect=dialect)
    answers = []
    for seed in (b"7", b"8", b"7"):
        caller = Caller()
        caller.headers.append((b"x-model-seed", seed))
        _answered(caller, app)
        told = caller.json
        answers.append(told.get("content") or told["choices"][0]["message"]["content"])
    assert answers[0] == answers[2] != answers[1]


def test_requests_that_seed_themselves_get_the_same_whenever_they_come() -> None:
    app = _app()
    callers = [Caller(seed=7), Caller(seed=8), Caller(seed=7)]
    for caller in callers:
        _answered(caller, app)
    contents = [caller.json["choices"][0]["message"]["content"] for caller in callers]
    assert contents[0] == contents[2] != contents[1]


@_DIALECTS
@pytest.mark.parametrize("stream", [False, True])
def test_a_caller_who_hangs_up_is_cut_and_generating_stops(
    *, stream: bool, dialect: Dialect
) -> None:
    app = _app(_NEVER, dialect=dialect)
    (record,) = _hung_up(Caller(stream=stream), app).calls
    assert (record.cut, record.usage_sent, record.output_tokens) == (True, False, 0)
    assert not record.input_sent
    assert record.input_tokens > 0


def test_only_messages_tell_a_caller_who_is_cut_what_went_in() -> None:
    script = Script(tokens=2, rate=0.001, chunk_most=1, first_token=0.0, jitter=0.0)
    for dialect, told in ((Chat(), False), (Messages(), True)):
        app, caller = _app(script, dialect=dialect), Caller(stream=True)

        async def leave(app: Completions = app, caller: Caller = caller) -> None:
            calling = asyncio.create_task(caller.call(app))
            await app._log.tokens_count(1)
            caller.gone.set()
            await calling

        asyncio.run(leave())
        (record,) = app._log.calls
        assert (record.cut, record.output_tokens) == (True, 1)
        assert (record.input_sent, record.usage_sent) == (told, False)


@pytest.mark.parametrize("stream", [False, True])
def test_a_provider_that_finishes_generates_for_nobody(*, stream: bool) -> None:
    script = Script(tokens=20, rate=1e9, first_token=0.3, jitter=0.0)
    caller = Caller(stream=stream)
    (record,) = _hung_up(caller, _app(script, "finish")).calls
    assert record.cut
    assert record.output_tokens == 20
    assert record.ended is not None
    assert record.closed is not None
    assert record.ended > record.closed
    assert b"content" not in caller.received


def test_a_silent_model_ends_with_its_caller() -> None:
    (record,) = _hung_up(Caller(), _app(Script(silent=True))).calls
    assert record.cut


def test_a_scripted_error_costs_no_tokens() -> None:
    caller = Caller()
    (record,) = _answered(caller, _app(Script(status=503, first_token=0.0))).calls
    assert caller.status == 503
    assert caller.json["error"]["message"] == "scripted"
    assert (record.status, record.total_tokens) == (503, 0)


def test_tool_calls_have_the_shape_of_the_api_in_both_forms() -> None:
    app = _app(Script(rate=1e9, tool_calls=(ToolCall("search", {"topic": "x"}),)))
    whole, stream = Caller(), Caller(stream=True)
    _answered(whole, app)
    _answered(stream, app)
    choice = whole.json["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    (call,) = choice["message"]["tool_calls"]
    assert call["function"] == {"name": "search", "arguments": '{"topic": "x"}'}
    pieces = [
        piece
        for event in stream.events
        for piece in event["choices"][0]["delta"].get("tool_calls", ())
    ]
    assert len(pieces) > 2
    assert {piece["index"] for piece in pieces} == {0}
    assert [piece["function"].get("name") for piece in pieces[:2]] == ["search", None]
    said = "".join(piece["function"]["arguments"] for piece in pieces)
    assert said == call["function"]["arguments"]


def test_a_header_scripts_one_request() -> None:
    caller = Caller()
    caller.headers.append((b"x-model-script", b'{"tokens": 3, "text": "so be it"}'))
    (record,) = _answered(caller, _app()).calls
    assert caller.json["choices"][0]["message"]["content"] == "so be it"
    assert record.output_tokens == 3


def test_a_script_that_cannot_be_meant_is_the_callers_mistake() -> None:
    caller = Caller()
    caller.headers.append((b"x-model-script", b'{"tokenz": 3}'))
    assert _answered(caller, _app()).calls == []
    assert caller.status == 400
    assert "tokenz" in caller.json["error"]["message"]


def test_waiting_for_what_never_happens_says_so() -> None:
    async def wait() -> None:
        await ModelLog().closed_count(1, within=0)

    with pytest.raises(TimeoutError):
        asyncio.run(wait())
