"""What the OpenAI Agents SDK begins in a run whose time is over; prints JSON.

``agents_starts.py``, in the environment that has it. In each scenario an agent's model,
which is not spoken to over HTTP, asks for tools, and the deadline passes meanwhile.
Nothing is cut in these runs, so only refusing keeps the tools from being begun, and
the model from being asked again.
"""

# mypy: ignore-errors
# ruff: noqa: ANN001, ANN002, ANN003, ANN201, ANN202

from __future__ import annotations

import asyncio
import json
import logging
import time

import agents
from agents.usage import Usage
from openai.types.responses import (
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
)
from opentelemetry import metrics, trace
from opentelemetry.instrumentation.genai.openai_agents import OpenAIAgentsInstrumentor

import hangup
from hangup.core import guard
from hangup.otel import names
from hangup.testing import Telemetry

BUDGET = 0.3


class Model(agents.Model):
    """Takes longer than there is time, and asks for tools; then it answers."""

    def __init__(self, *tools) -> None:
        self.asked = 0
        self._tools = tools

    async def get_response(self, *args, **options):
        self.asked += 1
        if self.asked == 1:
            time.sleep(BUDGET + 0.1)  # noqa: ASYNC251  nobody else is to have a turn
            output = [
                ResponseFunctionToolCall(
                    type="function_call",
                    call_id=f"call_{name}",
                    name=name,
                    arguments="{}",
                )
                for name in self._tools
            ]
        else:
            text = ResponseOutputText(type="output_text", text="done", annotations=[])
            output = [
                ResponseOutputMessage(
                    type="message",
                    id="msg_1",
                    role="assistant",
                    status="completed",
                    content=[text],
                )
            ]
        return agents.ModelResponse(output=output, usage=Usage(), response_id=None)

    async def stream_response(self, *args, **options):
        raise NotImplementedError
        yield


class Said(logging.Handler):
    """What the SDK logs."""

    def __init__(self) -> None:
        super().__init__()
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())


async def agent_in(mode, *tools, shielded=False):
    begun = []
    model = Model(*(tools or ("act", "act_too")))

    @agents.function_tool
    def act() -> str:
        """Act."""
        begun.append("act")
        return "done"

    @agents.function_tool
    async def act_too() -> str:
        """Act as well."""
        begun.append("act_too")
        return "done"

    agent = agents.Agent("agent", model=model, tools=[act, act_too])

    async def work():
        async with hangup.run(BUDGET, mode=mode):
            if shielded:
                async with hangup.cleanup(10):
                    await agents.Runner.run(agent, "go")
            else:
                await agents.Runner.run(agent, "go")

    before, logged = len(_recorded.spans()), len(_said.lines)
    refused = _recorded.value(names.REFUSALS, {names.DECISION: "refuse"})
    try:
        await work()
    except hangup.DeadlineExceeded:
        ended = "stopped"
    else:
        ended = "done"
    refused = _recorded.value(names.REFUSALS, {names.DECISION: "refuse"}) - refused
    spans = sorted(span.name for span in _recorded.spans()[before:])
    return {
        "begun": sorted(begun),
        "asked": model.asked,
        "ended": ended,
        "refused": refused,
        "tools": [name for name in spans if name.startswith("execute_tool")],
        "current": agents.get_current_span() is not None,
        "logged": _said.lines[logged:],
    }


async def main() -> None:
    """Run all scenarios."""
    found = {
        "refused": await agent_in("refuse"),
        "stopped": await agent_in("enforce"),
        "shielded": await agent_in("refuse", shielded=True),
        "observed": await agent_in("observe"),
    }
    hangup.uninstrument()
    hangup.instrument(irreversible="act")
    found["irreversible"] = await agent_in("refuse", "act")
    hangup.uninstrument()
    found["uninstrumented"] = await agent_in("refuse")
    print("\n" + json.dumps(found))  # noqa: T201  the result


if __name__ == "__main__":
    guard.strict(True)  # noqa: FBT003  a switch
    _recorded, _said = Telemetry(), Said()
    logging.getLogger("openai.agents").addHandler(_said)
    trace.set_tracer_provider(_recorded.tracer_provider)
    metrics.set_meter_provider(_recorded.meter_provider)
    hangup.instrument()
    agents.set_trace_processors([])
    OpenAIAgentsInstrumentor().instrument()
    asyncio.run(main())
