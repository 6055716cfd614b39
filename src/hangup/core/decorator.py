"""``@hangup.run(...)``: each call of a function in a run of its own."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any, TypeVar, cast

from hangup.config import Mode
from hangup.core import registry
from hangup.errors import MisuseError

if TYPE_CHECKING:
    from collections.abc import Callable

    from hangup.core.scope import RunScope

    Function = TypeVar("Function", bound=Callable[..., Any])


def decorated(
    scope: RunScope, function: Function, name: str | None, mode: Mode | None
) -> Function:
    """Return ``function`` in a scope like ``scope``, anew at every call.

    Raises:
        MisuseError: It is a generator.
    """
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise MisuseError(
            f"@hangup.run cannot wrap the generator {function.__qualname__}: its "
            "consumer may drop it half-way, in another task. Open the run with "
            "'async with hangup.run(...)' around the loop that consumes it"
        )
    name = name or function.__qualname__
    registry.declare(name, mode or Mode.ENFORCE)

    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def call_async(*args: Any, **kwargs: Any) -> Any:
            async with scope.again(name=name):
                return await function(*args, **kwargs)

        return cast("Function", call_async)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with scope.again(name=name):
            return function(*args, **kwargs)

    return cast("Function", call)
