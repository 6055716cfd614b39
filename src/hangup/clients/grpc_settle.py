"""Notices of what became of a run, to processes that helped it over gRPC.

They go out on the courier's thread (:mod:`hangup.clients.settle`), on a channel of
their own to the same target, made as the latest channel to it was that this has seen;
without one it is an insecure channel.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.instrumentation.utils import suppress_instrumentation

from hangup.otel import settlement
from hangup.otel.notices import SETTLE_RPC, encode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hangup.core.run import Run
    from hangup.otel.notices import Notice

SCHEME: Final = "grpc"
_TIMEOUT: Final = 2.0
_MOST: Final = 1_000


class _Channels:
    """How channels to a target were made. Thread-safe; when full, it begins anew."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Any, Any]] = {}

    def note(self, target: str, options: Any, credentials: Any) -> None:
        if target not in self._known and len(self._known) >= _MOST:
            self._known = {}
        self._known[target] = (options, credentials)

    def of(self, target: str) -> tuple[Any, Any]:
        return self._known.get(target, ((), None))


channels = _Channels()


class _Holders:
    """Targets that said they hold runs. Thread-safe; when full, it begins anew."""

    def __init__(self) -> None:
        self._known: dict[str, None] = {}

    def add(self, target: str) -> None:
        if target not in self._known:
            if len(self._known) >= _MOST:
                self._known = {}
            self._known[target] = None

    def __contains__(self, target: str) -> bool:
        return target in self._known


_holders = _Holders()


def settled_by(run: Run, target: str, *, held: bool) -> None:
    """Remember a server that wants to hear what became of a run.

    Args:
        run: The run.
        target: Where an RPC for it has ended.
        held: The server has said so. One that did before may have answered in full just
            before its caller stopped.
    """
    if held:
        _holders.add(target)
    if target in _holders:
        settlement.remember(run, f"{SCHEME}:{target}")


def post(origin: str, notices: Sequence[Notice]) -> None:
    """Send notices to ``origin``. Blocks, for two seconds at most.

    Raises:
        OSError: No connection, no answer in time, or not a success.
    """
    grpc: Any = sys.modules["grpc"]
    target = origin.partition(":")[2]
    options, credentials = channels.of(target)
    with suppress_instrumentation():
        channel = (
            grpc.insecure_channel(target, options)
            if credentials is None
            else grpc.secure_channel(
                target, grpc.ChannelCredentials(credentials), options
            )
        )
        try:
            channel.unary_unary(SETTLE_RPC)(encode(notices), timeout=_TIMEOUT)
        except grpc.RpcError as error:
            raise OSError(f"notice not taken: {error.code()}") from error
        finally:
            channel.close()
