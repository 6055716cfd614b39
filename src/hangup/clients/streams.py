"""openai and anthropic: a stream that nobody holds any more is closed at once.

In openai and in older anthropic the stream object holds a generator that holds it. So
a stream left with ``break`` and forgotten lives on until a garbage collection happens
to find the circle, and the provider generates to the end. Here the generator is given a
copy of the stream to run on: nothing holds the stream itself but who reads it.
"""

from __future__ import annotations

import copy
import functools
from typing import TYPE_CHECKING, Any, Final

from wrapt import register_post_import_hook

from hangup.clients.patch import Patch
from hangup.core.guard import guarded

if TYPE_CHECKING:
    from collections.abc import Callable

_LIBRARIES: Final = ("openai._streaming", "anthropic._streaming")
_CLASSES: Final = ("Stream", "AsyncStream")


def _init(original: Any, patch: Patch) -> Callable[..., None]:
    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if patch.active:
            guarded(_break_circle, self)

    return init


def _break_circle(stream: Any) -> None:
    if vars(stream).get("_iterator") is None:
        return  # another version, that may be sound
    runner = copy.copy(stream)
    vars(runner).pop("_iterator")
    stream._iterator = runner.__stream__()  # noqa: SLF001  see above


class _State:
    active = False
    hooked = False
    patches: tuple[Patch, ...] = ()


def install() -> None:
    """Mend the libraries: those imported by now, the others when they are. Idempotent.

    None is imported for it: that can take seconds.
    """
    _State.active = True
    if not _State.hooked:
        _State.hooked = True
        for library in _LIBRARIES:
            register_post_import_hook(_imported, library)
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
        cls = getattr(module, name, None)
        if cls is None or not hasattr(cls, "__stream__"):
            continue
        patch = Patch(cls, "__init__", _init)
        _State.patches += (patch,)
        if _State.active:
            patch.apply()
