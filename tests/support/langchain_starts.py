"""What LangChain begins in a run whose time is over; prints JSON.

``langchain_starts.py``, in the environment that has LangChain. In each scenario an
agent's model, which is not spoken to over HTTP, asks for a tool, and the deadline
passes meanwhile. Nothing is cut in these runs, so only refusing keeps the tool from
being begun, and the model from being asked again.
"""

# mypy: ignore-errors
# ruff: noqa: ANN001, ANN002, ANN003, ANN201, ANN202, ANN204

from __future__ import annotations

import asyncio
import json
import time

from langchain.agents import create_agent
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from opentelemetry import metrics, trace
from opentelemetry.instrumentation.genai.langchain import LangChainInstrumentor

import hangup
from hangup.clients import langchain
from hangup.core import guard
from hangup.otel import names
from hangup.testing import Telemetry

BUDGET = 0.3


class Model(BaseChatModel):
    """Takes longer than there is time, and asks for a tool."""

    asked: int = 0

    @property
    def _llm_type(self) -> str:
        return "test"

    def bind_tools(self, tools, **options):
        return self

    def _generate(self, messages, *args, **options):
        self.asked += 1
        time.sleep(BUDGET + 0.1)
        calls = [{"id": "call_1", "name": "act", "args": {}}]
        said = AIMessage("", tool_calls=calls if self.asked == 1 else [])
        return ChatResult(generations=[ChatGeneration(message=said)])


class Open(BaseCallbackHandler):
    """What has been begun and not ended."""

    def __init__(self):
        self.names = []

    def on_tool_start(self, *args, **options):
        self.names.append("tool")

    def on_chat_model_start(self, *args, **options):
        self.names.append("model")

    def on_tool_end(self, *args, **options):
        self.names.remove("tool")

    def on_llm_end(self, *args, **options):
        self.names.remove("model")

    def on_tool_error(self, *args, **options):
        self.names.remove("tool")

    def on_llm_error(self, *args, **options):
        self.names.remove("model")


async def agent_in(mode, *, blocking=False, shielded=False):
    begun = []
    model = Model()
    still = Open()

    @tool
    def act() -> str:
        """Act."""
        begun.append(1)
        return "done"

    agent = create_agent(model, [act])
    said = ({"messages": [("user", "go")]}, {"callbacks": [still]})

    async def work():
        async with hangup.run(BUDGET, mode=mode):
            if blocking:
                await asyncio.to_thread(agent.invoke, *said)
            elif shielded:
                async with hangup.cleanup(10):
                    await agent.ainvoke(*said)
            else:
                await agent.ainvoke(*said)

    refused = _recorded.value(names.REFUSALS, {names.DECISION: "refuse"})
    try:
        await work()
    except hangup.DeadlineExceeded:
        ended = "stopped"
    else:
        ended = "done"
    refused = _recorded.value(names.REFUSALS, {names.DECISION: "refuse"}) - refused
    return {
        "begun": len(begun),
        "asked": model.asked,
        "ended": ended,
        "open": still.names,
        "refused": refused,
    }


async def cut_before_its_first_turn():
    """Cancel a model call when it has been told of, and not been begun."""

    class Cut(BaseCallbackHandler):
        run_inline = True

        def on_chat_model_start(self, *args, **options):
            asyncio.current_task().cancel()

    async def work():
        async with hangup.run(60):
            await model.ainvoke("go", {"callbacks": [Cut()]})

    model = ChatOpenAI(model="m", base_url="http://127.0.0.1:9", api_key="test")
    before = len(_recorded.spans())
    try:
        await asyncio.create_task(work())
    except asyncio.CancelledError:
        await asyncio.sleep(0)  # who waits for a task may hear of its end first
        ended = [span.name for span in _recorded.spans()[before:]]
        return {"ended": ended, "kept": len(langchain._State.calls)}
    raise AssertionError("it was not cut")


async def main() -> None:
    """Run all scenarios."""
    found = {
        "refused": await agent_in("refuse"),
        "refused in a thread": await agent_in("refuse", blocking=True),
        "shielded": await agent_in("refuse", shielded=True),
        "observed": await agent_in("observe"),
    }
    found["cut"] = await cut_before_its_first_turn()
    hangup.uninstrument()
    hangup.instrument(irreversible="act")
    found["irreversible"] = await agent_in("refuse")
    print("\n" + json.dumps(found))  # noqa: T201  the result


if __name__ == "__main__":
    guard.strict(True)  # noqa: FBT003  a switch
    _recorded = Telemetry()
    trace.set_tracer_provider(_recorded.tracer_provider)
    metrics.set_meter_provider(_recorded.meter_provider)
    hangup.instrument()
    LangChainInstrumentor().instrument()
    asyncio.run(main())
