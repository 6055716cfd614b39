"""LangChain: what a refused span stands for is not begun, and what is cut has an end.

LangChain's instrumentations are callbacks of it, and it logs what callbacks raise and
goes on. So a span that is refused there keeps neither a tool from being begun nor a
model that is not called over httpx. Here LangChain is stopped where it has called them:
the span was refused, and counted, by then. Other callbacks, which have seen the start,
are told of the end, and the log is spared what was no error.

It calls OpenTelemetry's callback on a thread of the event loop's executor, where a
cancelled task leaves a span behind that nobody ends: a call that seems to go on for
ever, of a run that does not stop. Nothing in that callback blocks, so it is called
where it stands. Nor does LangChain end a model call that was cancelled before its task
had its first turn; that is made up for when the task around it has ended.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, Final

from wrapt import register_post_import_hook

from hangup.core.admission import stop_here
from hangup.core.current import current_run
from hangup.core.guard import guarded
from hangup.core.tree import current_task
from hangup.otel.mending import Mending

if TYPE_CHECKING:
    from collections.abc import Callable

    from hangup.otel.patch import Patch

_MODULE: Final = "langchain_core.callbacks.manager"
_OTEL: Final = "opentelemetry.instrumentation.genai.langchain.callback_handler"
_HANDLER: Final = "OpenTelemetryLangChainCallbackHandler"
_OURS: Final = ("DeadlineExceeded(", "RunCancelled(")
_CLASSES: Final = ("CallbackManager", "AsyncCallbackManager")
_TOOL: Final = "on_tool_start"
_CUT: Final = "on_llm_error"
# What tells of a start, and what of its failure.
_EVENTS: Final = {
    _TOOL: "on_tool_error",
    "on_chat_model_start": _CUT,
    "on_llm_start": _CUT,
    "on_retriever_start": "on_retriever_error",
}


def _start(event: str) -> Callable[[Any, Patch], Callable[..., Any]]:
    """Return what makes the wrapper of one kind of start."""
    failure = _EVENTS[event]

    def wrap(original: Any, patch: Patch) -> Callable[..., Any]:
        @functools.wraps(original)
        def start(self: Any, serialized: Any, *args: Any, **kwargs: Any) -> Any:
            begun = original(self, serialized, *args, **kwargs)
            refusal = guarded(_refusal, event, serialized) if patch.active else None
            if refusal is None:
                return begun
            for one in begun if isinstance(begun, list) else [begun]:
                getattr(one, failure)(refusal)
            raise refusal

        @functools.wraps(original)
        async def astart(self: Any, serialized: Any, *args: Any, **kwargs: Any) -> Any:
            begun = await original(self, serialized, *args, **kwargs)
            refusal = guarded(_refusal, event, serialized) if patch.active else None
            if refusal is None:
                if patch.active and failure == _CUT:
                    guarded(_see_to_end, begun)
                return begun
            for one in begun if isinstance(begun, list) else [begun]:
                await getattr(one, failure)(refusal)
            raise refusal

        return astart if iscoroutinefunction(original) else start

    return wrap


def _refusal(event: str, serialized: Any) -> BaseException | None:
    """Return what to raise in place of what is about to begin, None to let it."""
    run = current_run()
    if run is None:
        return None
    protected = run.settings.irreversible if event == _TOOL else ()
    if protected and (serialized or {}).get("name") in protected:
        return None
    return stop_here(run)


def _see_to_end(begun: list[Any]) -> None:
    """See that the model calls which begin on this task have an end when it has."""
    task = current_task()
    if task is None or current_run() is None:
        return
    known = task in _State.calls
    # One after the other on one task: those before have ended.
    _State.calls[task] = begun
    if not known:
        task.add_done_callback(_ended)


def _ended(task: asyncio.Task[Any]) -> None:
    begun = _State.calls.pop(task, [])
    if task.cancelled():
        guarded(_end, begun)


def _end(begun: list[Any]) -> None:
    """Tell OpenTelemetry's callback; to one that knows of an end it is nothing."""
    for one in begun:
        for handler in one.handlers:
            if type(handler).__module__ == _OTEL:
                handler.on_llm_error(asyncio.CancelledError(), run_id=one.run_id)


def _worth_a_line(record: logging.LogRecord) -> bool:
    """Whether a line of LangChain's log is about anything but a refusal of ours."""
    last = record.args[-1] if isinstance(record.args, tuple) and record.args else ""
    return not str(last).startswith(_OURS)


class _State:
    active = False
    hooked = False
    handler: Any = None
    calls: dict[asyncio.Task[Any], list[Any]]


_State.calls = {}
_mending: Final = Mending(
    *((_MODULE, cls, event, _start(event)) for cls in _CLASSES for event in _EVENTS)
)


def install() -> None:
    """Mend LangChain if it is imported, else when it is. Idempotent."""
    _State.active = True
    if not _State.hooked:
        _State.hooked = True
        register_post_import_hook(_imported, _OTEL)
    logging.getLogger(_MODULE).addFilter(_worth_a_line)
    _mending.install()
    _call_in_place()


def uninstall() -> None:
    """Take it back. Idempotent."""
    _State.active = False
    logging.getLogger(_MODULE).removeFilter(_worth_a_line)
    _mending.uninstall()
    _call_in_place()


def _imported(module: object) -> None:
    _State.handler = getattr(module, _HANDLER, None)
    guarded(_call_in_place)


def _call_in_place() -> None:
    """Have OpenTelemetry's callback called inline, or as it was."""
    if _State.handler is None:
        return
    if _State.active:
        _State.handler.run_inline = True
    elif "run_inline" in vars(_State.handler):
        del _State.handler.run_inline
