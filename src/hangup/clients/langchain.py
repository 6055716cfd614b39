"""LangChain: what a refused span stands for is not begun.

LangChain's instrumentations are callbacks of it, and it logs what callbacks raise and
goes on; most of them it calls on another thread, too. So a span that is refused there
keeps neither a tool from being begun nor a model that is not called over httpx. Here
LangChain is stopped where it has called them: the span was refused, and counted, by
then. Other callbacks, which have seen the start, are told of the end.
"""

from __future__ import annotations

import functools
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, Final

from wrapt import register_post_import_hook

from hangup.clients.patch import Patch
from hangup.core.admission import stop_here
from hangup.core.current import current_run
from hangup.core.guard import guarded

if TYPE_CHECKING:
    from collections.abc import Callable

_MODULE: Final = "langchain_core.callbacks.manager"
_CLASSES: Final = ("CallbackManager", "AsyncCallbackManager")
_TOOL: Final = "on_tool_start"
# What tells of a start, and what of its failure.
_EVENTS: Final = {
    _TOOL: "on_tool_error",
    "on_chat_model_start": "on_llm_error",
    "on_llm_start": "on_llm_error",
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


class _State:
    active = False
    hooked = False
    patches: tuple[Patch, ...] = ()


def install() -> None:
    """Mend LangChain if it is imported, else when it is. Idempotent."""
    _State.active = True
    if not _State.hooked:
        _State.hooked = True
        register_post_import_hook(_imported, _MODULE)
    for patch in _State.patches:
        patch.apply()


def uninstall() -> None:
    """Take it back. Idempotent."""
    _State.active = False
    for patch in _State.patches:
        patch.revert()


def _imported(module: object) -> None:
    guarded(_mend, module)


def _mend(module: object) -> None:
    for name in _CLASSES:
        manager: Any = getattr(module, name, None)
        for event in _EVENTS:
            if not hasattr(manager, event):
                continue
            patch = Patch(manager, event, _start(event))
            _State.patches += (patch,)
            if _State.active:
                patch.apply()
