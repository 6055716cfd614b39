"""MCP clients of the Python SDK (``mcp`` 2.x): calls carry the run, and end with it.

Installed with ``hangup.instrument()``, or by hand with :func:`install`. For every
session, over every transport:

- ``_meta`` of a request carries the deadline and the token, as of the moment it is
  sent; not to an HTTP server outside of the allow-list (``HANGUP_PROPAGATE_TO``).
- A tool call is a spending call: refused once its run is abandoned. In flight it is cut
  with its run, and the SDK tells the server (``notifications/cancelled``; by the 2026
  protocol over HTTP the response is closed, which means the same). Timeouts are clamped
  to the time left.
- A tool with ``destructiveHint``, as the session's last list says, or one named in
  ``HANGUP_IRREVERSIBLE``, is never refused, and begun it is finished.
- The HTTP requests of the SDK's transport belong to the session, which other runs use
  too: they are neither refused nor cut with the run that happened to send them.
"""

from __future__ import annotations

import functools
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from hangup import config
from hangup.clients import _mcp_settle
from hangup.clients._mcp_call import ToolCall, refusal_of
from hangup.core.current import Position, enter
from hangup.core.guard import guarded
from hangup.otel import carriers, mcpwire, wire
from hangup.otel.hosts import host_allowed, host_of_url
from hangup.otel.mending import Mending
from hangup.otel.propagator import outgoing, run_in

if TYPE_CHECKING:
    from collections.abc import Callable

    from hangup.otel.patch import Patch

_SESSION: Final = ("mcp.client.session", "ClientSession")
_HTTP: Final = ("mcp.client.streamable_http", "StreamableHTTPTransport")
_MOST_TOOLS: Final = 10_000  # of one session

_destructive: weakref.WeakKeyDictionary[Any, frozenset[str]] = (
    weakref.WeakKeyDictionary()
)


def _requests(original: Any, patch: Patch) -> Callable[..., Any]:
    @functools.wraps(original)
    async def send_request(
        self: Any,
        request: Any,
        result_type: Any,
        request_read_timeout_seconds: float | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        async def send(limit: float | None) -> Any:
            return await original(self, request, result_type, limit, *args, **kwargs)

        call = guarded(_call, self, request) if patch.active else None
        if call is None:
            return await send(request_read_timeout_seconds)
        given = request_read_timeout_seconds
        if given is None:
            given = getattr(self, "_session_read_timeout_seconds", None)
        return await call.through(send, given)

    return send_request


def _call(session: Any, request: Any) -> ToolCall | None:
    """Return what is to be done about a request, None where that is nothing."""
    run = run_in()
    if run is None:
        return None
    name = None
    if request.method == mcpwire.TOOLS_CALL:
        name = request.params.name
    protected = name is not None and (
        name in run.settings.irreversible or name in _destructive.get(session, ())
    )
    return ToolCall(run, _mcp_settle.link_of(session), protected=protected)


def _listings(original: Any, patch: Patch) -> Callable[..., Any]:
    @functools.wraps(original)
    def absorb(self: Any, result: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, result, *args, **kwargs)
        if patch.active:
            guarded(_note_listed, self, result, kwargs.get("complete", False))
        return result

    return absorb


def _note_listed(session: Any, result: Any, complete: bool) -> None:  # noqa: FBT001
    listed = frozenset(tool.name for tool in result.tools)
    found = frozenset(
        tool.name
        for tool in result.tools
        if getattr(tool.annotations, "destructive_hint", None) is True
    )
    if not complete:
        found |= _destructive.get(session, frozenset()) - listed
    if len(found) <= _MOST_TOOLS:
        _destructive[session] = found


def _closings(original: Any, patch: Patch) -> Callable[..., Any]:
    @functools.wraps(original)
    async def leave(self: Any, *error: Any) -> Any:
        try:
            if patch.active:
                await _mcp_settle.close(self)
        finally:
            closed = await original(self, *error)
        return closed

    return leave


def _messages(original: Any, patch: Patch) -> Callable[..., Any]:
    @functools.wraps(original)
    async def write(self: Any, message: Any, *args: Any, **kwargs: Any) -> Any:
        if patch.active and hasattr(message, "id") and hasattr(message, "method"):
            refusal = guarded(_refusal_or_carry, message)
            if refusal is not None:
                raise refusal
        return await original(self, message, *args, **kwargs)

    return write


def _refusal_or_carry(request: Any) -> BaseException | None:
    """Refuse a request, or see that it carries the run.

    A propagator has seen to that, but where there is no span that says it is MCP:
    without an SDK of OpenTelemetry.
    """
    run = run_in()
    if run is None:
        return None
    refusal = refusal_of(run, request.method)
    if refusal is not None or wire.HEADER in mcpwire.meta_of(request.params):
        return refusal
    meta = {**mcpwire.meta_of(request.params)}
    meta[wire.HEADER] = wire.encode_header(outgoing(run))
    request.params = {**(request.params or {}), mcpwire.META: meta}
    return None


def _posts(original: Any, patch: Patch) -> Callable[..., Any]:
    @functools.wraps(original)
    async def post(self: Any, ctx: Any, *args: Any, **kwargs: Any) -> Any:
        if patch.active:
            guarded(_keep_inside, self.url, ctx)
        with_session = partial(original, self, ctx, *args, **kwargs)
        return await _for_session(with_session, patch)

    return post


def _keep_inside(url: str, ctx: Any) -> None:
    host = host_of_url(url)
    if not host_allowed(host, config.current().propagate_to):
        params = getattr(ctx.session_message.message, "params", None) or {}
        meta = params.get(mcpwire.META)
        if isinstance(meta, dict):
            carriers.strip(meta)


def _streams(original: Any, patch: Patch) -> Callable[..., Any]:
    @functools.wraps(original)
    async def stream(self: Any, *args: Any, **kwargs: Any) -> Any:
        return await _for_session(partial(original, self, *args, **kwargs), patch)

    return stream


async def _for_session(work: Callable[[], Any], patch: Patch) -> Any:
    """Do the work of a session outside of the run that is around it by chance."""
    if not patch.active:
        return await work()
    leave = enter(Position(None))
    try:
        return await work()
    finally:
        leave()


_mending: Final = Mending(
    (*_SESSION, "send_request", _requests),
    (*_SESSION, "_absorb_tool_listing", _listings),
    (*_SESSION, "__aexit__", _closings),
    ("mcp.shared.jsonrpc_dispatcher", "JSONRPCDispatcher", "_write", _messages),
    (*_HTTP, "_handle_post_request", _posts),
    (*_HTTP, "_handle_resumption_request", _streams),
    (*_HTTP, "handle_get_stream", _streams),
)


def install() -> None:
    """See to every session of the process. Idempotent."""
    _mcp_settle.install()
    _mending.install()


def uninstall() -> None:
    """Take it back. Idempotent."""
    _mending.uninstall()
    _mcp_settle.uninstall()
