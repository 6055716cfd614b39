"""MCP servers of the Python SDK (``mcp`` 2.x): every tool call is served in a run.

Installed with ``hangup.instrument()``, for each server of the process, over every
transport: standard input and output, streamable HTTP (of the 2026 protocol and those
before it), and in memory. Or by hand, for one server, with settings of its own::

    from hangup.servers.mcp import protect

    server = protect(MCPServer("tools"), budget=30, mode="enforce")

The deadline and the token come in ``_meta`` and only ever tighten. The tool runs inside
the run. Its client's cancel, the end of the connection, and the deadline stop it; the
client is answered with a protocol error, with the cause in its ``data``, and the server
lives on. A tool with ``destructiveHint``, or one named in ``HANGUP_IRREVERSIBLE``, is
never refused, and begun it is finished.

By protocols before 2026 an HTTP client that goes without a word has not cancelled
anything: it may come back for its answer. There the deadline stops what nobody wants.
"""

from __future__ import annotations

import functools
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypedDict, TypeVar, Unpack

from hangup.core.guard import guarded
from hangup.errors import ArgumentError
from hangup.otel import mcpwire, settlement
from hangup.otel.mending import Mending
from hangup.servers._mcp_terms import Opening, Terms, ToolTraits

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hangup.config import Mode
    from hangup.otel.patch import Patch
    from hangup.servers._common_terms import RouteSettings

Server = TypeVar("Server")

_MOST_TOOLS: Final = 10_000  # of one server


class Keywords(TypedDict, total=False):
    """What :func:`protect` takes beside the server. None, or not given, is the default.

    Attributes:
        budget: Seconds a request may take, from its arrival. The default is
            ``HANGUP_BUDGET``.
        mode: off, observe, refuse or enforce (the default). ``HANGUP_MODE`` and the
            mode of the run that a request continues are ceilings.
        name: What the runs are called in metrics. The default is the tool's name.
        tenant: Whom the work is for.
        tools: Settings by the name of a tool, which go before these: a
            :class:`~hangup.servers._common_terms.RouteSettings` or a mapping with its
            budget, mode, name and tenant.
    """

    budget: float | None
    mode: Mode | str | None
    name: str | None
    tenant: str | None
    tools: Mapping[str, RouteSettings | Mapping[str, Any]] | None


class _State:
    instrumented = False
    by_hand = False


_DEFAULT: Final = Terms()


# By server: its settings, and what its lists have said of its tools.
_terms: weakref.WeakKeyDictionary[Any, Terms] = weakref.WeakKeyDictionary()
_listed: weakref.WeakKeyDictionary[Any, ToolTraits] = weakref.WeakKeyDictionary()


def protect(server: Server, **settings: Unpack[Keywords]) -> Server:
    """Serve every request of a server in a run, also without ``hangup.instrument()``.

    Args:
        server: An ``MCPServer``, or a ``Server`` of the low level.
        settings: See :class:`Keywords`.

    Returns:
        The server itself.

    Raises:
        ConfigError: A setting cannot be used.
        ArgumentError: It is no server of the SDK.
    """
    inner = getattr(server, "_lowlevel_server", server)
    if not hasattr(inner, "get_request_handler"):
        remedy = "give it an MCPServer, or a Server of mcp.server.lowlevel"
        raise ArgumentError("hangup.servers.mcp.protect", repr(server), remedy)
    settings["mode"] = settings.get("mode") or "enforce"
    _terms[inner] = Terms(**settings)
    _State.by_hand = True
    _mending.install()
    return server


def _requests(original: Any, patch: Patch) -> Callable[..., Any]:
    # Only where the SDK is there, and with it anyio.
    from hangup.servers._mcp_exchange import Exchange  # noqa: PLC0415

    @functools.wraps(original)
    async def on_request(self: Any, context: Any, method: str, params: Any) -> Any:
        handle = partial(original, self, context, method, params)
        terms = _terms_of(self.server) if patch.active else None
        if terms is None:
            return await handle()
        if method == mcpwire.SETTLE_METHOD:
            guarded(settlement.receive, (params or {}).get("settlements"))
            return {"resultType": "complete"}
        opening: Opening | None = guarded(_open, terms, self.server, method, params)
        if opening is not None:
            return await Exchange(context, opening).serve(handle)
        result = await handle()
        if method == "tools/list":
            guarded(_note_listed, self.server, params, result)
        return result

    return on_request


def _terms_of(server: Any) -> Terms | None:
    own = _terms.get(server)
    return own if own is not None or not _State.instrumented else _DEFAULT


def _open(terms: Terms, server: Any, method: str, params: Any) -> Opening | None:
    return terms.open(method, params, _traits(server, mcpwire.tool_of(method, params)))


def _traits(server: Any, tool: str | None) -> ToolTraits:
    """Return what is known of a tool: by its registration, else by what was listed."""
    if tool is None:
        return ToolTraits()
    entry = server.get_request_handler(mcpwire.TOOLS_CALL)
    owner = getattr(getattr(entry, "handler", None), "__self__", None)
    manager = getattr(owner, "_tool_manager", None)
    found = None if manager is None else manager.get_tool(tool)
    if found is None:
        return _listed.get(server, ToolTraits())
    hint = getattr(found.annotations, "destructive_hint", None)
    one = frozenset((tool,))
    return ToolTraits(one, one if hint is True else frozenset())


def _note_listed(server: Any, params: Any, result: Any) -> None:
    tools = [tool for tool in result.get("tools", ()) if isinstance(tool, dict)]
    before = _listed.get(server, ToolTraits())
    if not (params or {}).get("cursor"):
        before = ToolTraits()  # the list from its beginning
    known = before.known.union(str(tool.get("name")) for tool in tools)
    destructive = before.destructive.union(
        str(tool.get("name"))
        for tool in tools
        if (tool.get("annotations") or {}).get("destructiveHint") is True
    )
    if len(known) <= _MOST_TOOLS:
        _listed[server] = ToolTraits(known, destructive)


_mending: Final = Mending(
    ("mcp.server.runner", "ServerRunner", "_on_request", _requests)
)


def install() -> None:
    """Serve in runs what any server of the process is asked. Idempotent."""
    _State.instrumented = True
    _mending.install()


def uninstall() -> None:
    """Take it back, but for servers that were given to :func:`protect`. Idempotent."""
    _State.instrumented = False
    if not _State.by_hand:
        _mending.uninstall()
