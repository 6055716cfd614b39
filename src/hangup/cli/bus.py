"""``hangup ps`` and ``hangup kill``: the runs of every process on the bus."""

from __future__ import annotations

import itertools
import json
import sys
import time
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from hangup import config
from hangup.bus import connect, messages
from hangup.bus.base import BusDown
from hangup.bus.operator import Kill, Survey
from hangup.bus.operator import kill as kill_run
from hangup.bus.operator import survey as ask
from hangup.cli import say_missing
from hangup.errors import ConfigError, seconds

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.table import Table

    from hangup.bus.base import Transport

STOPPED: Final = 0
AMBIGUOUS: Final = 1
NOBODY: Final = 2
DOWN: Final = 3

_URL = Annotated[
    str | None,
    typer.Option("--bus", metavar="URL", help="The bus; HANGUP_BUS_URL if not given."),
]
_WAIT = Annotated[
    float, typer.Option(min=0.1, max=60.0, help="Seconds to wait for answers.")
]


def ps(
    *,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object, once.")
    ] = False,
    once: Annotated[
        bool, typer.Option(help="Print the table once; so does a pipe.")
    ] = False,
    every: Annotated[
        float, typer.Option(min=0.2, help="Seconds between two looks.")
    ] = 2.0,
    wait: _WAIT = 2.0,
    bus: _URL = None,
) -> None:
    """List the live runs of every process on the bus.

    A table that refreshes until you interrupt it. Exit status 3: the bus is down.
    """
    if not as_json and find_spec("rich") is None:
        raise typer.Exit(say_missing("rich", "redis"))
    transport = _reach(bus)
    try:
        found = ask(transport, patience=wait)
        if as_json:
            typer.echo(json.dumps(_plain(found)))
        elif once or not sys.stdout.isatty():
            _print(found)
        else:
            _watch(transport, found, every, wait)
    except BusDown as error:
        raise typer.Exit(_say_down(error)) from error
    finally:
        transport.close()


def kill(
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="The run's id, or how it begins.")
    ],
    *,
    detail: Annotated[
        str, typer.Option(help="Why, for logs and errors; free text.")
    ] = "by an operator",
    wait: _WAIT = 5.0,
    bus: _URL = None,
) -> None:
    """Stop a run, in every process that works on it.

    What begins like a run's id is looked up first, which counts to the wait. Exit
    status 0: a process that holds the run acknowledged the stop. 1: the id is
    ambiguous, or none. 2: nobody holds it. 3: the bus is down.
    """
    prefix = run.strip().lower()
    if not messages.is_prefix(prefix):
        _say(f"{run!r} is no run id: that is 32 hex digits, or the first few of them")
        raise typer.Exit(AMBIGUOUS)
    transport = _reach(bus)
    until = time.monotonic() + wait
    try:
        run_id = prefix
        if not messages.is_run_id(prefix):
            run_id = _resolve(transport, prefix, wait)
        left = max(0.0, until - time.monotonic())
        result = kill_run(transport, run_id, detail, patience=left)
    except BusDown as error:
        raise typer.Exit(_say_down(error)) from error
    finally:
        transport.close()
    raise typer.Exit(_tell(run_id, result))


def _resolve(transport: Transport, prefix: str, wait: float) -> str:
    """Return the one run whose id begins so; ask for so many seconds at most."""
    found = ask(transport, prefix, patience=wait)
    ids = {row["id"]: row for row in found.runs}
    if len(ids) == 1 and found.answered == found.asked:
        return str(next(iter(ids)))
    if found.answered < found.asked:
        silent = found.asked - found.answered
        _say(
            f"{silent} of {found.asked} processes did not answer, so {prefix!r} may be "
            "ambiguous; give the whole id"
        )
        raise typer.Exit(AMBIGUOUS)
    if not ids:
        _say(f"no live run's id begins with {prefix!r}")
        raise typer.Exit(NOBODY)
    _say(f"{prefix!r} is ambiguous; {len(ids)} live runs begin so:")
    for row in list(ids.values())[:10]:
        _say(f"  {row['id']}  {row['name']}  {row['process']}")
    raise typer.Exit(AMBIGUOUS)


def _tell(run_id: str, result: Kill) -> int:
    """Say what came of a kill; return the exit status."""
    for holder in result.holders:
        part = "stopped its part of" if holder["joined"] else "stopped"
        earlier = holder["cause"] != "killed"
        note = f" (already stopping: {holder['cause']})" if earlier else ""
        typer.echo(f"{holder['process']} {part} {holder['name']} {run_id}{note}")
    if result.holders:
        if not result.by_opener:
            _say("the process that opened the run did not answer")
        return STOPPED
    if result.fault is not None:
        posted = "; the kill may have been posted before that" * result.posted
        _say(f"the bus is down: {result.fault}{posted}")
        return DOWN
    _say(
        f"nobody holds {run_id}. The kill stays posted: who comes to hold the run "
        "stops it"
    )
    return NOBODY


def _reach(url: str | None) -> Transport:
    try:
        settings = config.with_keywords(config.from_environment(), bus_url=url)
        if settings.bus_url is None:
            _say("there is no bus: set HANGUP_BUS_URL, or give --bus URL")
            raise typer.Exit(DOWN)
        return connect(settings.bus_url)
    except (ConfigError, BusDown) as error:
        _say(str(error))
        raise typer.Exit(DOWN) from error


def _say(text: str) -> None:
    typer.echo(f"hangup: {text}", err=True)


def _say_down(error: BusDown) -> int:
    _say(f"the bus is down: {error}")
    return DOWN


# The table


def _plain(found: Survey) -> dict[str, Any]:
    return {
        "runs": found.runs,
        "processes": {"asked": found.asked, "answered": found.answered},
        "more": found.more,
    }


def _print(found: Survey) -> None:
    from rich.console import Console  # noqa: PLC0415  the extra may be missing

    Console().print(_table(found))


def _watch(transport: Transport, found: Survey, every: float, wait: float) -> None:
    from rich.live import Live  # noqa: PLC0415  the extra may be missing

    try:
        with Live(_table(found), auto_refresh=False, screen=True) as live:
            while True:
                time.sleep(every)
                try:
                    found = ask(transport, patience=wait)
                    live.update(_table(found), refresh=True)
                except BusDown as error:
                    # It may come back; what was seen last is still of use.
                    caption = f"the bus is down: {error}"
                    live.update(_table(found, caption), refresh=True)
    except KeyboardInterrupt:
        return


def _table(found: Survey, caption: str = "") -> Table:
    from rich.markup import escape  # noqa: PLC0415  the extra may be missing
    from rich.table import Table  # noqa: PLC0415

    heads = ("run", "name", "tenant", "age", "left", "tokens", "state", "process")
    table = Table(caption=caption or _caption(found), box=None, header_style="bold")
    for head in heads:
        right = head in ("age", "left", "tokens")
        table.add_column(head, justify="right" if right else "left")
    for row, shown in zip(found.runs, _shortest(found.runs), strict=True):
        cells = _cells(row, shown)
        table.add_row(*(escape(cell) for cell in cells))
    return table


def _cells(row: dict[str, Any], shown: str) -> tuple[str, ...]:
    left, tokens, cause = row["left"], row["tokens"], row["cause"]
    if left is None:
        remaining = "none"
    else:
        remaining = seconds(left) if left >= 0 else f"-{seconds(-left)}"
    state = row["state"] + (f" ({cause})" if cause else "")
    return (
        shown,
        row["name"],
        row["tenant"],
        seconds(row["age"]),
        remaining,
        "?" if tokens is None else str(tokens),
        state + (", part" if row["joined"] else ""),
        row["process"],
    )


def _shortest(rows: list[dict[str, Any]]) -> Iterable[str]:
    """Return each id as short as ``hangup kill`` takes it, 8 digits at least."""
    ids = sorted({row["id"] for row in rows})
    length = 8
    for one, other in itertools.pairwise(ids):
        while one[:length] == other[:length]:
            length += 1
    return (row["id"][:length] for row in rows)


def _caption(found: Survey) -> str:
    text = f"{len(found.runs)} runs, {found.answered} of {found.asked} processes"
    return f"{text}; {found.more} more not shown" if found.more else text
