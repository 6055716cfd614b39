"""What of a run stands in the messages of MCP: in ``_meta``, and in errors. Pure.

A request carries the same entries as any carrier (see :mod:`hangup.otel.wire`): the
``Hangup`` header under its name and W3C baggage, both in ``params._meta``. A result
whose ``_meta`` has :data:`SETTLE_MARK` says that the run is held there, and that a
request :data:`SETTLE_METHOD` tells what became of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from hangup.core.cause import Cause
from hangup.otel import wire
from hangup.otel.notices import SETTLE_HEADER

if TYPE_CHECKING:
    from hangup.otel.wire import Inbound

META: Final = "_meta"
TOOLS_CALL: Final = "tools/call"
SETTLE_MARK: Final = SETTLE_HEADER
SETTLE_METHOD: Final = "hangup/settle"

_DATA: Final = "hangup"
# The SDK's own codes for a request that took too long, and for one that was cancelled.
_TIMED_OUT: Final = -32001
_CANCELLED: Final = -32800


def inbound_of(params: Mapping[str, Any] | None) -> Inbound | None:
    """Return the run that a request of another process works for, if it says.

    Never raises, whatever stands there.
    """
    meta = meta_of(params)
    header, entries = meta.get(wire.HEADER), meta.get(wire.BAGGAGE)
    if isinstance(header, str) and (found := wire.decode_header(header)) is not None:
        return found
    return wire.from_baggage_text(entries) if isinstance(entries, str) else None


def meta_of(message: object) -> Mapping[str, Any]:
    """Return the ``_meta`` of parameters or of a result, empty where there is none."""
    meta = message.get(META) if isinstance(message, Mapping) else None
    return meta if isinstance(meta, Mapping) else {}


def tool_of(method: str, params: Mapping[str, Any] | None) -> str | None:
    """Return the name of the tool that a request calls, None for any other."""
    name = (params or {}).get("name") if method == TOOLS_CALL else None
    return name if isinstance(name, str) else None


def code_of(cause: Cause) -> int:
    """Return the JSON-RPC error code for a run that was abandoned for ``cause``."""
    return _TIMED_OUT if cause is Cause.DEADLINE else _CANCELLED


def data_of(run_id: str, cause: Cause) -> dict[str, Any]:
    """Return the ``data`` of such an error."""
    return {_DATA: {"run": run_id, "cause": cause.value}}


def cause_in(data: object, run_id: str) -> Cause | None:
    """Read such a ``data``: why the peer says that run was stopped there, if it does.

    None also where it speaks of another run, or is anything else.
    """
    said = data.get(_DATA) if isinstance(data, Mapping) else None
    if not isinstance(said, Mapping) or said.get("run") != run_id:
        return None
    try:
        return Cause(str(said.get("cause")))
    except ValueError:
        return None
