"""What a process under ``hangup doctor`` has seen: hosts, tools, calls, counts.

Nothing here runs without a doctor. With one, the recorder's and the instruments'
methods are replaced on the instance by ones that take note and go on; each note is a
few dictionary steps, and there are at most so many.
"""

from __future__ import annotations

import functools
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from wrapt import register_post_import_hook, wrap_function_wrapper

from hangup.core.guard import guarded
from hangup.otel import calls, exchanges, forks, hosts, names
from hangup.otel.call import MODEL_CALLS
from hangup.otel.context import run_in

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from hangup.otel.call import Call, Exchange
    from hangup.otel.instrumentor import HangupInstrumentor

_MOST: Final = 200
"""Hosts, tools or label sets that are remembered; later ones are not."""
_COUNTED: Final = {
    "unknown": names.UNKNOWN_CALLS,
    "estimated": names.ESTIMATED_TOKENS,
    "tokens": names.TOKENS,
    "calls": names.CALLS,
    "runs": names.RUNS,
    "baggage_lost": names.BAGGAGE_LOST,
}


class Sightings:
    """Notes of one process. Written by many threads, each step of them atomic."""

    def __init__(self) -> None:
        self.denied: set[str] = set()
        self.model_hosts: set[str] = set()
        self.tools: Counter[str] = Counter()
        self.protected: set[str] = set()
        self.destructive: set[str] = set()
        self.model_calls: Counter[str] = Counter()
        self.samples: dict[str, Counter[tuple[tuple[str, str], ...]]] = {}

    def after_fork(self) -> None:
        """Forget what the parent process counted: it tells of that itself."""
        self.tools, self.model_calls = Counter(), Counter()
        self.samples = {}

    def host_denied(self, host: str) -> None:
        """Note a host that a run called and that was told nothing of it."""
        if len(self.denied) < _MOST and run_in(None) is not None:
            self.denied.add(host)

    def span_call(self, call: Call, span: Span, *_: object) -> None:
        """Note a call that a span told of."""
        if call.kind == calls.TOOL:
            tool = calls.tool_of(getattr(span, "attributes", None))
            if tool and _room(self.tools, tool):
                self.tools[tool] += 1
                if call.protected:
                    self.protected.add(tool)
        elif call.kind in MODEL_CALLS:
            self.model_calls["span"] += 1

    def exchange(self, exchange: Exchange) -> None:
        """Note a model request that was seen on the wire."""
        if exchange.parent is None:
            self.model_calls["bare"] += 1

    def request(self, host: str, opening: exchanges.Opening) -> None:
        """Note that a host is a model's: it is told nothing, and rightly so."""
        if opening.exchange is not None and len(self.model_hosts) < _MOST:
            self.model_hosts.add(host)

    def tools_offered(self, offered: object) -> None:
        """Note which tools of an MCP server say that they destroy something."""
        for tool in getattr(offered, "tools", ()):
            notes = getattr(tool, "annotations", None)
            # Only where it was said: the protocol's default is true, for every tool.
            hint = getattr(notes, "destructive_hint", None)
            if hint is None:
                hint = getattr(notes, "destructiveHint", None)
            if hint is True and len(self.destructive) < _MOST:
                self.destructive.add(str(tool.name))

    def count(
        self, name: str, amount: float, labels: dict[str, Any] | None = None
    ) -> None:
        """Note what was added to a counter."""
        series = self.samples.setdefault(name, Counter())
        key = tuple(sorted((k, str(v)) for k, v in (labels or {}).items()))
        if amount and _room(series, key):
            series[key] += amount  # type: ignore[assignment]  # amounts may be floats


SEEN: Final = Sightings()


def _room(seen: Counter[Any], key: object) -> bool:
    return key in seen or len(seen) < _MOST


def watch(instrumentor: HangupInstrumentor) -> None:
    """Take note of what this instrumentor's parts see. Idempotent."""
    hosts.on_denied(partial(guarded, SEEN.host_denied))
    forks.first(SEEN.after_fork)
    _watch_requests()
    _watch_mcp()
    recorder = getattr(instrumentor, "_recorder", None)
    if recorder is not None:
        for name, note in (
            ("start", SEEN.span_call),
            ("start_exchange", SEEN.exchange),
        ):
            if name not in vars(recorder):
                setattr(recorder, name, _noting(getattr(recorder, name), note))
    instruments: Any = getattr(instrumentor, "_instruments", None)
    if instruments is not None:
        for attribute, name in _COUNTED.items():
            counter = getattr(instruments, attribute, None)
            if counter is not None and not isinstance(counter, _Tally):
                setattr(instruments, attribute, _Tally(counter, name))


def _noting(method: Any, note: Any) -> Any:
    @functools.wraps(method)
    def noting(*args: Any) -> Any:
        guarded(note, *args)
        return method(*args)

    return noting


class _Tally:
    """A counter that keeps its sums where they can be read."""

    def __init__(self, counter: Any, name: str) -> None:
        self._counter = counter
        self._name = name

    def add(self, amount: float, *args: Any, **kwargs: Any) -> None:
        """Add, as the counter does."""
        labels = args[0] if args else kwargs.get("attributes")
        guarded(SEEN.count, self._name, amount, labels)
        self._counter.add(amount, *args, **kwargs)


class _Wrapped:
    requests = False


def _watch_requests() -> None:
    if _Wrapped.requests:
        return
    _Wrapped.requests = True
    open_request = exchanges.open_request

    @functools.wraps(open_request)
    def noting(host: str, path: str, body: bytes | None) -> exchanges.Opening:
        opening = open_request(host, path, body)
        guarded(SEEN.request, host, opening)
        return opening

    exchanges.open_request = noting


class _Mcp:
    hooked = False


def _watch_mcp() -> None:
    if not _Mcp.hooked:
        _Mcp.hooked = True
        register_post_import_hook(_wrap_mcp, "mcp.client.session")


def _wrap_mcp(module: Any) -> None:
    async def list_tools(wrapped: Any, _self: Any, args: Any, kwargs: Any) -> Any:
        offered = await wrapped(*args, **kwargs)
        guarded(SEEN.tools_offered, offered)
        return offered

    if hasattr(module.ClientSession, "list_tools"):
        wrap_function_wrapper(module, "ClientSession.list_tools", list_tools)
