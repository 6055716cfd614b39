"""What becomes of LangGraph threads that are stopped in their tools; prints JSON.

``langgraph_threads.py``, in the environment that has LangGraph. Each scenario is a
thread with two tools that do not end, stopped, and then spoken to; told are why the
model would refuse what it then sees, how many calls were answered for, and how often a
tool was begun.
"""

# mypy: ignore-errors
# ruff: noqa: ANN001, ANN003, ANN201, ANN202, ANN205

from __future__ import annotations

import asyncio
import json
from typing import TypedDict

from langchain_core.messages import (
    AIMessage,
    RemoveMessage,
    ToolMessage,
    convert_to_messages,
    convert_to_openai_messages,
)
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.types import Command, Overwrite
from support.providers.history import fault

import hangup
from hangup.clients.langgraph import ANSWER
from hangup.core import guard

CONFIG = {"configurable": {"thread_id": "1"}}
CALLS = [{"id": f"call_{n}", "name": "wait", "args": {}} for n in range(2)]


class Plain(TypedDict):
    messages: list


class Thread:
    """A graph with one thread, and what its model was shown."""

    def __init__(self, state=MessagesState, **options) -> None:
        self.seen = []
        self.begun = 0
        self.running = asyncio.Event()
        self.go_on = asyncio.Event()

        @tool
        async def wait() -> str:
            """Wait."""
            self.begun += 1
            if self.begun == len(CALLS):
                self.running.set()
            await self.go_on.wait()
            return "done"

        def think(state):
            self.seen = convert_to_messages(state["messages"])
            greeted = any(message.content == "hello" for message in self.seen)
            calls = [] if greeted or self.begun else CALLS
            said = AIMessage("", tool_calls=calls)
            return {"messages": [*self.keeps(), said]}

        self.keeps = lambda: [] if state is MessagesState else self.seen
        inner = (
            StateGraph(state)
            .add_node(think)
            .add_node("tools", ToolNode([wait]))
            .add_edge(START, "think")
            .add_conditional_edges("think", tools_condition)
            .add_edge("tools", "think")
        )
        self.graph = inner.compile(**{"checkpointer": InMemorySaver(), **options})
        if options:
            outer = StateGraph(state).add_node("inner", self.graph)
            outer.add_edge(START, "inner")
            self.graph = outer.compile(checkpointer=InMemorySaver())

    async def stopped(self):
        async def go():
            async with hangup.run(60) as run:
                runs.append(run)
                await self.graph.ainvoke({"messages": [self.human("go")]}, CONFIG)

        runs = []
        going = asyncio.create_task(go())
        await self.running.wait()
        runs[0].cancel("killed")
        try:
            await going
        except hangup.RunCancelled:
            return self
        raise AssertionError("it was not stopped")

    @staticmethod
    def human(text):
        return {"role": "user", "content": text}

    async def then(self, said, mode="enforce"):
        async with hangup.run(60, mode=mode):
            self.go_on.set()
            await self.graph.ainvoke(said, CONFIG)
        return self.told()

    def told(self):
        shown = convert_to_openai_messages(self.seen)
        answers = json.dumps(shown).count(ANSWER)
        return {
            "fault": fault({"messages": shown}),
            "answered": answers,
            "begun": self.begun,
        }


async def says_hello():
    thread = await Thread().stopped()
    return await thread.then({"messages": [Thread.human("hello")]})


async def says_hello_in_one_word():
    thread = await Thread().stopped()
    return await thread.then({"messages": "hello"})


async def says_hello_twice():
    thread = await Thread().stopped()
    await thread.then({"messages": [Thread.human("hello")]})
    return await thread.then({"messages": [Thread.human("hello")]})


async def says_hello_from_a_thread():
    thread = await Thread().stopped()

    def blocking():
        with hangup.run(60):
            thread.graph.invoke({"messages": [Thread.human("hello")]}, CONFIG)

    await asyncio.to_thread(blocking)
    return thread.told()


async def is_resumed():
    thread = await Thread().stopped()
    return await thread.then(None)


async def is_commanded():
    thread = await Thread().stopped()
    return await thread.then(Command(update={"messages": []}))


async def answers_itself():
    thread = await Thread().stopped()
    own = [ToolMessage("mine", tool_call_id=call["id"]) for call in CALLS]
    return await thread.then({"messages": [*own, Thread.human("hello")]})


async def takes_it_back():
    thread = await Thread().stopped()
    last = thread.graph.get_state(CONFIG).values["messages"][-1]
    back = RemoveMessage(id=last.id)
    return await thread.then({"messages": [back, Thread.human("hello")]})


async def begins_anew():
    thread = await Thread().stopped()
    return await thread.then({"messages": Overwrite([Thread.human("hello")])})


async def brings_its_history():
    thread = await Thread(Plain).stopped()
    return await thread.then({"messages": [AIMessage("well"), AIMessage("hello")]})


async def is_a_subgraph_with_a_memory():
    thread = await Thread(checkpointer=True).stopped()
    return await thread.then({"messages": [Thread.human("hello")]})


async def is_only_observed():
    thread = await Thread().stopped()
    return await thread.then({"messages": [Thread.human("hello")]}, mode="observe")


async def is_without_hangup():
    thread = await Thread().stopped()
    hangup.uninstrument()
    try:
        return await thread.then({"messages": [Thread.human("hello")]})
    finally:
        hangup.instrument()


SCENARIOS = (
    says_hello,
    says_hello_in_one_word,
    says_hello_twice,
    says_hello_from_a_thread,
    is_resumed,
    is_commanded,
    answers_itself,
    takes_it_back,
    begins_anew,
    brings_its_history,
    is_a_subgraph_with_a_memory,
    is_only_observed,
    is_without_hangup,
)


def main() -> None:
    """Run all scenarios."""
    guard.strict(True)  # noqa: FBT003  a switch
    hangup.instrument()
    found = {scenario.__name__: asyncio.run(scenario()) for scenario in SCENARIOS}
    print("\n" + json.dumps(found))  # noqa: T201  the result


if __name__ == "__main__":
    main()
