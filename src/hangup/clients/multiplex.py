"""httpcore's HTTP/2, where one connection serves many: a cancel stays its own affair.

Two things are done that httpcore does not do (1.0.9, and httpcore2 2.16).

A frame that was begun is written. The state of the connection has moved on when a frame
is handed to the network; cut there, the other side never sees what its own state (the
header table, the numbers of streams, TLS's records) must follow, and every request that
shares the connection fails. So what is written is written in a task of its own.

A response that is dropped is reset. Otherwise the provider never hears that nobody
reads on, and generates to the end; and what it sends is never acknowledged, until the
window of the whole connection is used up and every other response stands still.
"""

# ruff: noqa: SLF001  httpcore has no public way to see to this

from __future__ import annotations

import contextlib
import functools
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from hangup.clients.finish import running_loop, soon, to_the_end
from hangup.core.guard import guarded
from hangup.otel.patch import Patch, patches

if TYPE_CHECKING:
    from collections.abc import Callable

_CANCEL: Final = 8
"""The error code of a reset that says: not needed any more (RFC 9113, 7)."""


def patches_of(core_name: str) -> list[Patch]:
    """Return what is to be patched in ``httpcore`` or ``httpcore2``."""
    try:
        asynchronous = import_module(f"{core_name}._async.http2")
        synchronous = import_module(f"{core_name}._sync.http2")
        shared = asynchronous.AsyncHTTP2Connection
        return patches(
            (shared, "_write_outgoing_data", _write),
            (shared, "_response_closed", _closed_async),
            (synchronous.HTTP2Connection, "_response_closed", _closed_sync),
        )
    except (ImportError, AttributeError):  # no h2, or another version
        return []


def _write(original: Any, patch: Patch) -> Callable[..., Any]:
    @functools.wraps(original)
    async def write_outgoing_data(self: Any, request: Any) -> None:
        if not patch.active or running_loop() is None:
            await original(self, request)
        elif self._write_exception is not None or _pending(self):
            await to_the_end(original(self, request))

    return write_outgoing_data


def _pending(connection: Any) -> bool:
    """Whether there is anything to write; most of the time there is not."""
    return bool(getattr(connection._h2_state, "_data_to_send", True))


def _closed_async(original: Any, patch: Patch) -> Callable[..., Any]:
    @functools.wraps(original)
    async def response_closed(self: Any, stream_id: int) -> None:
        if patch.active and guarded(_drop, self, stream_id):
            soon(functools.partial(self._write_outgoing_data, _NoRequest()))
        await original(self, stream_id)

    return response_closed


def _closed_sync(original: Any, patch: Patch) -> Callable[..., Any]:
    @functools.wraps(original)
    def response_closed(self: Any, stream_id: int) -> None:
        if patch.active and guarded(_drop, self, stream_id):
            with contextlib.suppress(Exception):  # the connection is gone
                self._write_outgoing_data(_NoRequest())
        original(self, stream_id)

    return response_closed


class _NoRequest:
    """What writing wants to know of a request: how long it may take, in seconds."""

    extensions: Final = {"timeout": {"write": 5.0}}


def _drop(connection: Any, stream_id: int) -> bool:
    """Reset a response that is not read to its end; whether there is what to write."""
    state = connection._h2_state
    for event in connection._events.get(stream_id, ()):
        amount = getattr(event, "flow_controlled_length", 0)
        if amount:  # it was received, and will be read by nobody
            _try(state.acknowledge_received_data, amount, stream_id)
    # Not one that has ended, or never began: that error would close the connection.
    stream = state.streams.get(stream_id)
    if stream is not None and not stream.closed:
        _try(state.reset_stream, stream_id, _CANCEL)
    return _pending(connection)


def _try(call: Callable[..., object], *args: object) -> None:
    with contextlib.suppress(Exception):
        call(*args)
