"""httpx and httpx2, one client by hand: its transport is wrapped, and nothing patched.

For a client whose transport is none of the stack's own (a unix socket, a cache, a mock
of a test), which ``hangup.instrument()`` does not reach, and for a process that does
not call that at all.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar, cast

from hangup.clients import httpx as adapter
from hangup.errors import ArgumentError

if TYPE_CHECKING:
    from types import TracebackType

Transport = TypeVar("Transport")

_STACKS: Final = ("httpx", "httpx2")
# Ours, by the stack's base classes that they are made of.
_CLASSES: dict[tuple[type, ...], type] = {}


def wrap(transport: Transport) -> Transport:
    """Return a transport that does for one client what instrumenting does for all.

    Model requests through it are refused once the run around them is abandoned, their
    timeouts are clamped to the time left, an answer that is left unread is closed, and
    the ``Hangup`` header goes to internal hosts. Where ``hangup.instrument()`` was
    called they are metered too, and what passes a patched transport further in is
    handled once.

    Args:
        transport: Of httpx or httpx2, synchronous, asynchronous or both.

    Returns:
        A transport of the same stack and kind, for ``Client(transport=...)``. Closing
        it closes the one inside; every other attribute is that one's.

    Raises:
        ArgumentError: It is no transport.
    """
    if isinstance(transport, _Wrapped):
        return transport
    for name in _STACKS:
        # What it was made with has been imported.
        stack = sys.modules.get(name)
        if stack is None:
            continue
        kinds = (stack.BaseTransport, stack.AsyncBaseTransport)
        bases = tuple(kind for kind in kinds if isinstance(transport, kind))
        if bases:
            adapter.watch_stops()
            return cast("Transport", _class_of(bases)(transport, stack))
    raise _no_transport(transport)


def _no_transport(given: object) -> ArgumentError:
    library = type(given).__module__.partition(".")[0]
    name = library if library in _STACKS else _STACKS[0]
    got = f"the class {given.__qualname__}" if isinstance(given, type) else repr(given)
    remedy = (
        f"give it an instance of {name}.BaseTransport or {name}.AsyncBaseTransport, as "
        f"in {name}.Client(transport=wrap({name}.HTTPTransport()))"
    )
    return ArgumentError("hangup.clients.transport.wrap", got, remedy)


class _Wrapped:
    """The part that is the same for both stacks. Thread-safe as the one inside is."""

    def __init__(self, inner: Any, stack: Any) -> None:
        self._inner = inner
        self._stack = stack

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_inner"], name)

    def __repr__(self) -> str:
        return f"<hangup transport around {self._inner!r}>"


class _Sync:
    _inner: Any
    _stack: Any

    def handle_request(self, request: Any) -> Any:
        return adapter.through(self._send, request, self._stack)

    def _send(self, request: Any) -> Any:
        adapter.mark_ours(request)
        return self._inner.handle_request(request)

    def close(self) -> None:
        self._inner.close()

    def __enter__(self) -> Self:
        self._inner.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> None:
        self._inner.__exit__(kind, error, trace)


class _Async:
    _inner: Any
    _stack: Any

    async def handle_async_request(self, request: Any) -> Any:
        return await adapter.through_async(self._send_async, request, self._stack)

    async def _send_async(self, request: Any) -> Any:
        adapter.mark_ours(request)
        return await self._inner.handle_async_request(request)

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def __aenter__(self) -> Self:
        await self._inner.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> None:
        await self._inner.__aexit__(kind, error, trace)


def _class_of(bases: tuple[type, ...]) -> type:
    """Return our class for transports of these kinds: clients may ask what they are."""
    found = _CLASSES.get(bases)
    if found is None:
        ours = tuple(
            _Sync if hasattr(base, "handle_request") else _Async for base in bases
        )
        made = type("HangupTransport", (_Wrapped, *ours, *bases), {})
        found = _CLASSES[bases] = made
    return found
