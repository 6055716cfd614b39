"""``hangup demo``."""

from __future__ import annotations

import asyncio
import json
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path  # noqa: TC003  typer reads the annotation
from typing import TYPE_CHECKING, Annotated

import typer

from hangup.cli import first_absent, say_missing

if TYPE_CHECKING:
    from hangup.demo.results import Demo

_USERS = 32


class Provider(StrEnum):
    """Whose API the model speaks, and whose client asks it."""

    OPENAI = "openai"
    ANTHROPIC = "anthropic"


class OnClose(StrEnum):
    """Whether the provider goes on generating after its caller hung up."""

    STOP = "stop"
    FINISH = "finish"


def demo(  # noqa: PLR0913  one for each option
    *,
    users: Annotated[int, typer.Option(min=1, help="How many people ask.")] = _USERS,
    seed: Annotated[int, typer.Option(help="The same seed, the same people.")] = 1,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object, nothing else.")
    ] = False,
    html: Annotated[
        Path | None,
        typer.Option(
            dir_okay=False, writable=True, help="Write a picture of a few runs here."
        ),
    ] = None,
    provider: Annotated[
        Provider, typer.Option(help="Whose API the model speaks.")
    ] = Provider.OPENAI,
    provider_on_close: Annotated[
        OnClose,
        typer.Option(
            help="After its caller hung up, the model stops, or finishes and bills."
        ),
    ] = OnClose.STOP,
    first_token: Annotated[
        float,
        typer.Option(
            min=0.0, max=2.0, help="Seconds before the model's first token, about."
        ),
    ] = 0.15,
) -> None:
    """Let a few dozen users ask an agent, and four in ten walk away.

    Real servers, a real client SDK, real disconnects, all on this machine: first
    in observe mode, then the same people again in enforce mode.
    """
    absent = first_absent()
    if absent is None and find_spec(provider.value) is None:
        absent = provider.value
    if absent is not None:
        raise typer.Exit(say_missing(absent))
    result = _run(users, seed, provider, provider_on_close, first_token)
    if html is not None:
        from hangup.demo.picture import page  # noqa: PLC0415  only where asked for

        html.write_text(page(result), encoding="utf-8")
    if as_json:
        typer.echo(json.dumps(result.to_json()))
    else:
        from rich.console import Console  # noqa: PLC0415  only where asked for

        from hangup.demo.table import table_of  # noqa: PLC0415

        Console().print(table_of(result))


def _run(
    users: int, seed: int, provider: Provider, on_close: OnClose, first_token: float
) -> Demo:
    """Run it with a progress bar on stderr."""
    from rich.console import Console  # noqa: PLC0415  the extra may be missing
    from rich.progress import (  # noqa: PLC0415
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
    )

    from hangup.demo.harness import run_demo  # noqa: PLC0415
    from hangup.demo.workload import MODES, Setting  # noqa: PLC0415

    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("users"),
        TimeElapsedColumn(),
        console=Console(stderr=True),
    ) as progress:
        bars = {
            mode: progress.add_task(mode, total=users, start=False) for mode in MODES
        }

        def moved(mode: str, done: int) -> None:
            if done == 0:
                progress.start_task(bars[mode])
            progress.update(bars[mode], completed=done)

        setting = Setting(provider.value, on_close.value, first_token)
        return asyncio.run(run_demo(users, seed, setting, on_progress=moved))
