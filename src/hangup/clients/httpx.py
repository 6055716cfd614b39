"""httpx and httpx2: the run leaves with requests to hosts that may have it.

Two places are wrapped. At the transport, where a request and its answer are seen as
httpx objects, the ``Hangup`` header is set or taken out, and answers of servers that
hold the run are remembered. At the connection pool beneath it, past everything that may
still touch a request, our entries are taken out of what goes to any other host. Works
without any HTTP instrumentation, and with spans that the sampler dropped.
"""

from __future__ import annotations

import functools
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from hangup import config
from hangup.clients.patch import Patch
from hangup.core.admission import stop_here
from hangup.core.guard import guarded
from hangup.core.tree import current_task
from hangup.otel import carriers, settlement, wire
from hangup.otel.hosts import host_allowed
from hangup.otel.notices import SETTLE_HEADER
from hangup.otel.propagator import REQUEST_HOST, outgoing, run_in

if TYPE_CHECKING:
    from collections.abc import Callable

    from hangup.core.run import Run

_STACKS: Final = (("httpx", "httpcore"), ("httpx2", "httpcore2"))


class _Hop:
    """One request on its way; a redirect makes another."""

    __slots__ = ("_request", "_run", "host")

    def __init__(self, request: Any) -> None:
        self._request = request
        self._run: Run | None = None
        self.host: str | None = None

    def leave(self) -> None:
        """Write the header as of now, or take out every trace."""
        self.host = self._request.url.raw_host.decode("ascii")
        allowed = host_allowed(self.host or "", config.current().propagate_to)
        run = run_in() if allowed else None
        headers = self._request.headers
        if run is None:
            carriers.strip(headers)
            return
        self._run = run
        headers[wire.HEADER] = wire.encode_header(outgoing(run))

    def arrive(self, response: Any) -> None:
        """Remember who wants to hear what became of the run."""
        if self._run is not None and SETTLE_HEADER in response.headers:
            origin = self._origin()
            _holders.add(origin)
            settlement.remember(self._run, origin)

    def fail(self) -> None:
        """Remember a server that holds runs though its answer was not read.

        It may have answered in full just before the caller was stopped.
        """
        if self._run is not None and (origin := self._origin()) in _holders:
            settlement.remember(self._run, origin)

    def _origin(self) -> str:
        url = self._request.url
        return f"{url.scheme}://{url.netloc.decode('ascii')}"


class _Origins:
    """Origins that have said they hold runs; the latest so many. Thread-safe."""

    _MOST = 1_000

    def __init__(self) -> None:
        self._known: dict[str, None] = {}

    def add(self, origin: str) -> None:
        if origin not in self._known:
            if len(self._known) >= self._MOST:
                self._known = {}
            self._known[origin] = None

    def __contains__(self, origin: str) -> bool:
        return origin in self._known


_holders = _Origins()


def _refusal() -> BaseException | None:
    """Return the stop to raise in place of a request inside a spending call.

    A model client's own retries are requests of one call whose span began long ago.
    Requests outside spending calls are nobody's business.
    """
    run = run_in()
    if run is None or not run.work.tree.calling(current_task()):
        return None
    return stop_here(run)


def _sync_transport(original: Any, patch: Patch) -> Callable[..., Any]:
    @functools.wraps(original)
    def handle_request(self: Any, request: Any) -> Any:
        if not patch.active:
            return original(self, request)
        if (refusal := guarded(_refusal)) is not None:
            raise refusal
        hop = _Hop(request)
        guarded(hop.leave)
        before = REQUEST_HOST.set(hop.host)
        try:
            response = original(self, request)
        except BaseException:
            guarded(hop.fail)
            raise
        finally:
            REQUEST_HOST.reset(before)
        guarded(hop.arrive, response)
        return response

    return handle_request


def _async_transport(original: Any, patch: Patch) -> Callable[..., Any]:
    @functools.wraps(original)
    async def handle_async_request(self: Any, request: Any) -> Any:
        if not patch.active:
            return await original(self, request)
        if (refusal := guarded(_refusal)) is not None:
            raise refusal
        hop = _Hop(request)
        guarded(hop.leave)
        before = REQUEST_HOST.set(hop.host)
        try:
            response = await original(self, request)
        except BaseException:
            guarded(hop.fail)
            raise
        finally:
            REQUEST_HOST.reset(before)
        guarded(hop.arrive, response)
        return response

    return handle_async_request


def _last_gate(request: Any) -> None:
    host = request.url.host.decode("ascii", "replace")
    if not host_allowed(host, config.current().propagate_to):
        carriers.strip(request.headers)


def _pool(original: Any, patch: Patch) -> Callable[..., Any]:
    # Returns what the original returns: an answer, or a coroutine to await for it.
    @functools.wraps(original)
    def handle(self: Any, request: Any) -> Any:
        if patch.active:
            guarded(_last_gate, request)
        return original(self, request)

    return handle


_patches: list[Patch] = []


def install() -> None:
    """Wrap the HTTP stacks that can be imported. Idempotent."""
    if not _patches:
        for client, core in _STACKS:
            _patches.extend(_patches_of(client, core))
    for patch in _patches:
        patch.apply()


def uninstall() -> None:
    """Unwrap them; what cannot be unwrapped hands everything through. Idempotent."""
    for patch in _patches:
        patch.revert()


def _patches_of(client_name: str, core_name: str) -> list[Patch]:
    try:
        client, core = import_module(client_name), import_module(core_name)
    except ImportError:
        return []
    return [
        Patch(client.HTTPTransport, "handle_request", _sync_transport),
        Patch(client.AsyncHTTPTransport, "handle_async_request", _async_transport),
        Patch(core.ConnectionPool, "handle_request", _pool),
        Patch(core.AsyncConnectionPool, "handle_async_request", _pool),
    ]
