"""The one boundary between hangup's own bookkeeping and the code it observes.

A fault of ours, or of a callback given to us, is logged once and swallowed; under tests
(:func:`strict`) it is raised, so that it cannot hide.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_logger = logging.getLogger("hangup")


class _State:
    strict = False
    logged: set[tuple[str, str]]


_State.logged = set()
_MOST_LOGGED = 1_000


def strict(on: bool) -> bool:  # noqa: FBT001  a switch is what it is
    """Raise guarded faults instead of logging them, or stop to; for test suites.

    Returns:
        What it was before.
    """
    before, _State.strict = _State.strict, on
    return before


def guarded(call: Callable[..., Any], *args: object) -> Any:
    """Return ``call(*args)``; an exception is logged once per place and type.

    Thread-safe; None after a fault. ``BaseException`` passes: it is not a fault of
    bookkeeping.
    """
    try:
        return call(*args)
    except Exception as error:  # noqa: BLE001  that is its purpose
        return fault(getattr(call, "__qualname__", repr(call)), error)


def guarded_each(calls: Iterable[Callable[..., Any]], *args: object) -> None:
    """Call each as :func:`guarded` does, also where one raises what passes.

    Whoever is told of a stop is told, whatever another one does: the first
    ``BaseException`` is raised when all have been called.
    """
    passes: BaseException | None = None
    for call in calls:
        try:
            guarded(call, *args)
        except BaseException as error:  # noqa: BLE001  it is raised below
            passes = passes or error
    if passes is not None:
        raise passes


def fault(place: str, error: BaseException) -> None:
    """Swallow a fault of ours: what :func:`guarded` does, where a frame is dear."""
    if _State.strict:
        raise error
    report(place, error)


def report(place: str, error: BaseException) -> None:
    """Log a swallowed fault with its traceback, once per place and type."""
    key = (place, type(error).__name__)
    if key not in _State.logged and len(_State.logged) < _MOST_LOGGED:
        _State.logged.add(key)
        _logger.error(
            "%s failed inside hangup; the application goes on (logged once)",
            place,
            exc_info=error,
        )
