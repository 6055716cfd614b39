"""httpx and httpx2: requests are asked for, metered, and carry the run where they may.

Two places are wrapped. At the transport, where a request and its answer are seen as
httpx objects, a request is asked for and its answer watched (``visit``, ``bodies``),
the ``Hangup`` header is set or taken out, and answers of servers that hold the run are
remembered. At the connection pool beneath it, past everything that may still touch a
request, our entries are taken out of what goes to any other host, and what a cancel
has broken is mended (``pools``). Works without any HTTP instrumentation, and with spans
that the sampler dropped.
"""

from __future__ import annotations

import functools
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Self

from hangup import config
from hangup.clients import multiplex, openings, pools
from hangup.clients.closing import close_unread, opened
from hangup.clients.recall import origin_of
from hangup.clients.visit import Visit
from hangup.core import registry
from hangup.core.guard import guarded
from hangup.otel import carriers, settlement, wire
from hangup.otel.hosts import host_allowed
from hangup.otel.notices import SETTLE_HEADER
from hangup.otel.patch import Patch
from hangup.otel.propagator import REQUEST_HOST, outgoing, run_in

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

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
            origin = origin_of(self._request.url)
            _holders.add(origin)
            settlement.remember(self._run, origin)

    def fail(self) -> None:
        """Remember a server that holds runs though its answer was not read.

        It may have answered in full just before the caller was stopped.
        """
        if (
            self._run is not None
            and (origin := origin_of(self._request.url)) in _holders
        ):
            settlement.remember(self._run, origin)


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


_MARK: Final = "hangup"
_OURS: Final = object()


class _Passage:
    """One request through a transport of one stack, and what is done around it.

    It marks the request, so that another transport of ours further in, the patched one
    beneath one that was wrapped by hand, lets it through.
    """

    __slots__ = ("_attempts", "_hop", "_request", "_stack", "_visit")

    def __init__(
        self,
        request: Any,
        stack: Any,
        send: Callable[[Any], Any],
        *,
        asynchronous: bool,
    ) -> None:
        self._request = request
        self._stack = stack
        self._attempts = 0
        look = partial(Visit, asynchronous=asynchronous)
        self._visit: Visit | None = guarded(look, request, stack, send)
        if self._visit is not None and self._visit.refusal is not None:
            raise self._visit.refusal
        self._hop = _Hop(request)

    def attempt(self) -> None:
        """Ask for a request that has come through already, unless it is the first.

        Raises:
            Stop: It may not be sent once more.
        """
        self._attempts += 1
        if self._attempts == 1 or self._visit is None:
            return
        stop = guarded(self._visit.stop)
        if stop is not None:
            raise stop

    def __enter__(self) -> Self:
        guarded(self._hop.leave)
        if self._visit is not None:
            guarded(self._visit.leave, self._request, self._stack)
        guarded(self._mark)
        return self

    def _mark(self) -> None:
        self._request.extensions = {**self._request.extensions, _MARK: self}

    def _unmark(self) -> None:
        kept = dict(self._request.extensions)
        kept.pop(_MARK, None)
        self._request.extensions = kept

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        guarded(self._unmark)
        if self._visit is not None:
            guarded(self._visit.left, self._request)
        if error is None:
            return
        guarded(self._hop.fail)
        if self._visit is not None:
            guarded(self._visit.fail)

    def arrive(self, response: Any, *, asynchronous: bool) -> None:
        """See to the answer."""
        guarded(self._hop.arrive, response)
        if self._visit is not None:
            guarded(self._visit.advise, self._request, response)
            watch = partial(self._visit.answer, asynchronous=asynchronous)
            guarded(watch, response, self._stack)

    def stop_in_flight(self) -> BaseException | None:
        """Return the stop to raise in place of an error, None where that stands."""
        return None if self._visit is None else guarded(self._visit.stop_in_flight)

    def refusal_in(self, error: Exception) -> BaseException | None:
        """Return the refusal that an error of the stack hides, None if none does."""
        return None if self._visit is None else self._visit.refusal_in(error)

    @property
    def host(self) -> str | None:
        """Where it goes."""
        return self._hop.host


def mark_ours(request: Any) -> None:
    """Let a request of our own, which is in no passage, go past us all the way."""
    if _MARK not in request.extensions:
        request.extensions = {**request.extensions, _MARK: _OURS}


def _is_inside(request: Any) -> bool:
    """Whether a transport of ours further out sees to the request, and lets it go on.

    What stands between the two may send it more than once; each time is asked for.

    Raises:
        Stop: It may not go on.
    """
    passage = request.extensions.get(_MARK)
    if isinstance(passage, _Passage):
        passage.attempt()
    return isinstance(passage, _Passage) or passage is _OURS


def through(send: Callable[[Any], Any], request: Any, stack: Any) -> Any:
    """Send a request with everything that is done around it; return its answer.

    Args:
        send: Sends it; may be kept to send one of our own the same way, past us.
        request: A request of ``stack``.
        stack: The module ``httpx`` or ``httpx2``.

    Raises:
        Stop: The request is refused; nothing was sent.
    """
    if _is_inside(request):
        return send(request)
    with _Passage(request, stack, send, asynchronous=False) as passage:
        before = REQUEST_HOST.set(passage.host)
        try:
            response = send(request)
        except Exception as error:
            stop = passage.stop_in_flight()
            if stop is None:
                raise
            raise stop from error
        finally:
            REQUEST_HOST.reset(before)
    passage.arrive(response, asynchronous=False)
    return response


async def through_async(
    send: Callable[[Any], Awaitable[Any]], request: Any, stack: Any
) -> Any:
    """Do the same as :func:`through` for an asynchronous client."""
    if _is_inside(request):
        return await send(request)
    with _Passage(request, stack, send, asynchronous=True) as passage:
        before = REQUEST_HOST.set(passage.host)
        try:
            response = await send(request)
        except Exception as error:
            told = passage.refusal_in(error)
            if told is None:
                raise
            raise told from error
        finally:
            REQUEST_HOST.reset(before)
    passage.arrive(response, asynchronous=True)
    return response


def _sync_transport(stack: Any) -> Callable[[Any, Patch], Callable[..., Any]]:
    def make(original: Any, patch: Patch) -> Callable[..., Any]:
        @functools.wraps(original)
        def handle_request(self: Any, request: Any) -> Any:
            if not patch.active:
                return original(self, request)
            return through(partial(original, self), request, stack)

        return handle_request

    return make


def _async_transport(stack: Any) -> Callable[[Any, Patch], Callable[..., Any]]:
    def make(original: Any, patch: Patch) -> Callable[..., Any]:
        @functools.wraps(original)
        async def handle_async_request(self: Any, request: Any) -> Any:
            if not patch.active:
                return await original(self, request)
            return await through_async(partial(original, self), request, stack)

        return handle_async_request

    return make


def _last_gate(request: Any) -> None:
    host = request.url.host.decode("ascii", "replace")
    if not host_allowed(host, config.current().propagate_to):
        carriers.strip(request.headers)


def _sync_pool(original: Any, patch: Patch) -> Callable[..., Any]:
    @functools.wraps(original)
    def handle_request(self: Any, request: Any) -> Any:
        if not patch.active:
            return original(self, request)
        guarded(_last_gate, request)
        try:
            return original(self, request)
        except BaseException:
            guarded(pools.mend_sync, self)
            raise

    return handle_request


def _async_pool(original: Any, patch: Patch) -> Callable[..., Any]:
    @functools.wraps(original)
    async def handle_async_request(self: Any, request: Any) -> Any:
        if not patch.active:
            return await original(self, request)
        guarded(_last_gate, request)
        try:
            return await original(self, request)
        except BaseException:
            guarded(pools.mend_async, self)
            raise

    return handle_async_request


class _Stops(registry.RunObserver):
    """Closes what a stopped run has left unread."""

    def abandoned(self, run: Run) -> None:
        if opened.bodies and run.work.acts:
            close_unread(run)

    closed = abandoned


class _State:
    by_hand = False


_stops = _Stops()
_patches: list[Patch] = []


def watch_stops() -> None:
    """Close what stopped runs have left unread, also where nothing is patched."""
    _State.by_hand = True
    registry.add_observer(_stops)


def install() -> None:
    """Wrap the HTTP stacks that can be imported. Idempotent."""
    if not _patches:
        for client, core in _STACKS:
            _patches.extend(_patches_of(client, core))
    for patch in _patches:
        patch.apply()
    registry.add_observer(_stops)


def uninstall() -> None:
    """Unwrap them; what cannot be unwrapped hands everything through. Idempotent."""
    if not _State.by_hand:
        registry.remove_observer(_stops)
    for patch in _patches:
        patch.revert()


def _patches_of(client_name: str, core_name: str) -> list[Patch]:
    try:
        client, core = import_module(client_name), import_module(core_name)
    except ImportError:
        return []
    return [
        Patch(client.HTTPTransport, "handle_request", _sync_transport(client)),
        Patch(
            client.AsyncHTTPTransport, "handle_async_request", _async_transport(client)
        ),
        Patch(core.ConnectionPool, "handle_request", _sync_pool),
        Patch(core.AsyncConnectionPool, "handle_async_request", _async_pool),
        *pools.patches_of(core_name),
        *openings.patches_of(core_name),
        *multiplex.patches_of(core_name),
    ]
