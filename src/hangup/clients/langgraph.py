"""LangGraph: a thread whose tools were stopped is usable afterwards.

A run that is stopped between the model's tool calls and their results leaves the calls
in the thread's checkpoint. When the user says something next, LangGraph discards the
tool tasks that did not finish and keeps the calls. Every provider refuses such a
history, in this turn and in every later one (case b11). Whatever stops a graph leaves
it so, in whichever form it comes.

So where LangGraph discards the tasks, which is where new input comes to a thread, the
calls are answered: messages that say so are put before the input. Nothing is read or
written beside what LangGraph reads and writes then; it holds for a thread that another
process was stopped on; and a run that is resumed without input does its tools again,
as ever.

Graphs of ``langchain.agents.create_agent`` are such graphs. Not covered are message
channels that input cannot reach or that have no reducer, input that is not a mapping,
and runs that are only observed.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from hangup.core.current import current_run
from hangup.core.guard import guarded
from hangup.otel.mending import Mending

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hangup.otel.patch import Patch

ANSWER: Final = "Not done: the run was stopped before this had finished."
"""What the model is told of a tool that was stopped."""
_MODULE: Final = "langgraph.pregel._loop"
_MESSAGES: Final = "langchain_core.messages"


def _first(original: Any, patch: Patch) -> Callable[..., Any]:
    @functools.wraps(original)
    def first(self: Any, *args: Any, **kwargs: Any) -> Any:
        if patch.active and isinstance(self.input, Mapping):
            run = current_run()
            if run is not None and run.mode.refuses:
                guarded(_answer_stopped, self)
        return original(self, *args, **kwargs)

    return first


def _answer_stopped(loop: Any) -> None:
    """Put answers to the tool calls of a thread before the input it now gets.

    Where the graph resumes its input is not applied, and so they are not.
    """
    found = {}
    for name, channel in loop.channels.items():
        # Without a reducer, input replaces what is there; such a graph's callers
        # bring the whole history.
        if not (hasattr(channel, "operator") or hasattr(channel, "reducer")):
            continue
        if not channel.is_available():
            continue
        said = loop.input.get(name, ())
        calls = dict(_unanswered(channel.get()))
        if calls and _is_open(said, calls):
            said = list(said) if isinstance(said, list) else [said] if said else []
            found[name] = [*_answers(calls), *said]
    if found:
        loop.input = {**loop.input, **found}


def _unanswered(history: object) -> Iterator[tuple[str, str]]:
    """Yield ids and names of the tool calls that a history ends in without answers."""
    if not isinstance(history, list):
        return
    answered = set()
    for message in reversed(history):
        kind = getattr(message, "type", None)
        if kind == "tool":
            answered.add(message.tool_call_id)
            continue
        if kind == "ai":
            for call in message.tool_calls:
                if call["id"] not in answered:
                    yield call["id"], call["name"]
        return


def _is_open(said: object, calls: Mapping[str, str]) -> bool:
    """Whether input leaves these calls as they are: it neither answers nor edits."""
    if not said:
        return True
    convert = import_module(_MESSAGES).convert_to_messages
    try:
        messages = convert(said if isinstance(said, list) else [said])
    except (NotImplementedError, TypeError, ValueError):
        return False
    return not any(
        message.type == "remove" or getattr(message, "tool_call_id", None) in calls
        for message in messages
    )


def _answers(calls: Mapping[str, str]) -> list[Any]:
    answer = import_module(_MESSAGES).ToolMessage
    return [
        answer(ANSWER, tool_call_id=number, name=name, status="error")
        for number, name in calls.items()
    ]


_mending: Final = Mending((_MODULE, "PregelLoop", "_first", _first))


def install() -> None:
    """Mend LangGraph if it is imported, else when it is. Idempotent."""
    _mending.install()


def uninstall() -> None:
    """Take it back. Idempotent."""
    _mending.uninstall()
