"""What has to hold of a row, and what of it does.

A check has a short name, which is a column of the printed matrix, and yields what is
wrong, nothing if all is right.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from matrix.bench import CUT_AT
from matrix.rows import GEMINI, MCP

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from matrix.bench import Measured, Scenarios
    from matrix.rows import Row

    Check = Callable[[Row, Scenarios], Iterator[str]]

_SHARE = 0.02
_TOKENS = 2


def _near(value: float, truth: float) -> bool:
    return abs(value - truth) <= max(_SHARE * truth, _TOKENS)


def _refused(row: Row, found: Scenarios) -> Iterator[str]:
    """Refused before the call in an expired run: the server gets no request."""
    for name in ("refused whole", "refused stream"):
        measured = found.get(name)
        if measured is None:
            continue
        if measured.requests:
            yield f"{name}: {measured.requests} requests at the server"
        if measured.calls or measured.tools:
            yield f"{name}: counted as a call"
        if measured.error and measured.error != row.makes_of_stop:
            yield f"{name}: the caller got {measured.error}"


def _usage(row: Row, name: str, measured: Measured) -> Iterator[str]:
    """The usage of a whole call equals the server's, counted once."""
    if measured.error:
        yield f"{name}: {measured.error}"
    if measured.calls != row.calls:
        yield f"{name}: {measured.calls:g} calls for {row.calls}"
    if measured.tools != row.tool:
        yield f"{name}: {measured.tools:g} tool calls for {row.tool:d}"
    if measured.unknown:
        yield f"{name}: {measured.unknown:g} unknown calls"
    if set(measured.fates) != {"delivered"}:
        yield f"{name}: fates {measured.fates}"
    for what, tokens in (
        ("attributed", measured.attributed),
        ("metered", measured.metered),
    ):
        if measured.told and tokens != measured.server:
            yield f"{name}: {what} {tokens}, the server {measured.server}"
        # Where the wire carries text alone, the input is only estimated.
        if not measured.told and not _near(tokens[1], measured.server[1]):
            yield f"{name}: {what} {tokens[1]}, the server {measured.server[1]} out"
    if not measured.told and not measured.estimated:
        yield f"{name}: an estimate is not flagged"


def _whole(row: Row, found: Scenarios) -> Iterator[str]:
    yield from _usage(row, "whole", found["whole"])


def _stream(row: Row, found: Scenarios) -> Iterator[str]:
    yield from _usage(row, "stream", found["stream"])


def _tools(row: Row, found: Scenarios) -> Iterator[str]:
    """A tool call runs once and is counted once."""
    measured = found["whole"]
    if measured.error:
        yield measured.error
    if measured.requests != 1:
        yield f"the tool ran {measured.requests} times"
    if measured.tools != 1:
        yield f"{measured.tools:g} tool calls for 1"


def _cut(row: Row, found: Scenarios) -> Iterator[str]:
    """Of a stream cut by a disconnect, sunk and wasted are what was generated."""
    measured = found["cut stream"]
    if measured.error:
        yield measured.error
    if set(measured.fates) - {"sunk", "wasted"}:
        yield f"fates {measured.fates}"
    if measured.calls != 1:
        yield f"{measured.calls:g} calls for 1"
    if measured.metered != measured.attributed:
        yield f"attributed {measured.attributed}, metered {measured.metered}"
    tokens, truth = measured.attributed, measured.server
    if not _near(tokens[1], truth[1]):
        yield f"{tokens[1]:g} tokens out, the server {truth[1]}"
    if measured.told and tokens[0] != truth[0]:
        yield f"{tokens[0]:g} tokens in, the server {truth[0]}"
    # Gemini alone says with every chunk what it used so far.
    if bool(measured.estimated) == (row.client == GEMINI):
        yield f"{measured.estimated:g} tokens are flagged as estimated"


def _cut_whole(row: Row, found: Scenarios) -> Iterator[str]:
    """Of a whole call cut in flight the output is unknown, and said to be."""
    measured = found["cut whole"]
    if measured.error:
        yield measured.error
    if row.threads:
        # It cannot be interrupted: it ends, and is counted in full.
        if measured.attributed != measured.server or measured.server[1] <= CUT_AT:
            yield f"attributed {measured.attributed}, the server {measured.server}"
        return
    if measured.unknown != 1:
        yield f"{measured.unknown:g} unknown calls for 1"
    if measured.attributed[1]:
        yield f"{measured.attributed[1]:g} tokens out that nobody saw"
    if not measured.attributed[0]:
        yield "no input, which was sent"


_MODEL_CHECKS: dict[str, Check] = {
    "refused, 0 requests": _refused,
    "whole call": _whole,
    "stream": _stream,
    "stream cut": _cut,
    "whole call cut": _cut_whole,
}
_TOOL_CHECKS: dict[str, Check] = {"refused, 0 requests": _refused, "whole call": _tools}
COLUMNS = tuple(_MODEL_CHECKS)


def columns_of(row: Row) -> tuple[str, ...]:
    """Return the columns that a row has a verdict in."""
    return tuple(_checks(row))


def judge(row: Row, found: Scenarios) -> dict[str, list[str]]:
    """Return what is wrong in each column of a row; [] where all is right."""
    return {name: list(check(row, found)) for name, check in _checks(row).items()}


def _checks(row: Row) -> dict[str, Check]:
    return _TOOL_CHECKS if row.client == MCP else _MODEL_CHECKS
