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

from hangup.core.guard import guarded
from hangup.otel.mending import Mending

if TYPE_CHECKING:
    from collections.abc import Callable

    from hangup.otel.patch import Patch

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
    if not hasattr(stream, "__stream__") or vars(stream).get("_iterator") is None:
        return  # another version, that may be sound
    runner = copy.copy(stream)
    vars(runner).pop("_iterator")
    stream._iterator = runner.__stream__()  # noqa: SLF001  see above


_mending: Final = Mending(
    *((module, cls, "__init__", _init) for module in _LIBRARIES for cls in _CLASSES)
)


def install() -> None:
    """Mend the libraries, now or when they are imported. Idempotent."""
    _mending.install()


def uninstall() -> None:
    """Take it back. Idempotent."""
    _mending.uninstall()
