"""Wrapping one method of a class that is not ours, and undoing it cleanly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from wrapt import FunctionWrapper

Make = Callable[[Any, "Patch"], Callable[..., Any]]


class Patch:
    """One method, wrapped while the patch is applied. Not thread-safe.

    Ours goes beneath the wrappers that instrumentations put around a method, whichever
    came first: so it sees a request as it is finally sent, and their way of taking
    themselves out again (by the outermost wrapper) still finds itself.

    Args:
        owner: The class.
        name: The method, which may be inherited.
        make: Makes the wrapper from the original. The wrapper must ask ``active`` and
            hand the call through where it is false: another wrapper may keep ours.
    """

    def __init__(self, owner: type, name: str, make: Make) -> None:
        self.active: bool = False
        self._owner = owner
        self._name = name
        self._make = make
        self._inherited = False
        self._original: Any = None
        self._wrapper: Any = None

    def apply(self) -> None:
        """Wrap the method. Idempotent."""
        self.active = True
        if self._wrapper is not None and self._is_in_place():
            return
        outer, inner = self._innermost()
        self._inherited = self._name not in vars(self._owner)
        self._original = inner
        self._wrapper = self._make(inner, self)
        if outer is None:
            setattr(self._owner, self._name, self._wrapper)
        else:
            outer.__wrapped__ = self._wrapper

    def revert(self) -> None:
        """Put the original back, as far as others left ours in reach. Idempotent."""
        self.active = False
        outer, inner = self._innermost()
        if inner is not self._wrapper or self._wrapper is None:
            return
        if outer is not None:
            outer.__wrapped__ = self._original
        elif self._inherited:
            delattr(self._owner, self._name)
        else:
            setattr(self._owner, self._name, self._original)
        self._wrapper = None

    def _innermost(self) -> tuple[Any, Any]:
        """Return what stands beneath wrapt's wrappers, and the one right above it."""
        outer, inner = None, self._present()
        while isinstance(inner, FunctionWrapper):
            outer, inner = inner, inner.__wrapped__
        return outer, inner

    def _is_in_place(self) -> bool:
        method = self._present()
        while method is not None:
            if method is self._wrapper:
                return True
            method = getattr(method, "__wrapped__", None)
        return False

    def _present(self) -> Any:
        for base in self._owner.__mro__:
            if self._name in vars(base):
                return vars(base)[self._name]
        raise AttributeError(self._name)


def patches(*wanted: tuple[type, str, Make]) -> list[Patch]:
    """Return the patches of those methods that this version of a library has."""
    return [Patch(*one) for one in wanted if hasattr(one[0], one[1])]
