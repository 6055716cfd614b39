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
    from hangup.demo.workload import Setting

_USERS = 32
_PORT = 9464
_WRONG = 2
_SCRAPING = "opentelemetry.exporter.prometheus"


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
    serve: Annotated[
        bool,
        typer.Option(
            "--serve",
            help="Let users keep coming, in both modes at once, and be scraped.",
        ),
    ] = False,
    port: Annotated[
        int,
        typer.Option(
            min=1,
            max=65_534,
            help="Where --serve is scraped: the agent; the subagent at the next one.",
        ),
    ] = _PORT,
    rounds: Annotated[
        int | None,
        typer.Option(min=0, help="With --serve: after so many it is quiet."),
    ] = None,
) -> None:
    """Let a few dozen users ask an agent, and four in ten walk away.

    Real servers, a real client SDK, real disconnects, all on this machine: first
    in observe mode, then the same people again in enforce mode. With --serve for as
    long as you like, for a Prometheus and the dashboards.
    """
    absent = first_absent()
    if absent is None and find_spec(provider.value) is None:
        absent = provider.value
    if absent is not None:
        raise typer.Exit(say_missing(absent))
    if serve:
        setting = _setting(provider, provider_on_close, first_token)
        raise typer.Exit(_serve(users, seed, setting, port, rounds))
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
    from hangup.demo.workload import MODES  # noqa: PLC0415

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

        setting = _setting(provider, on_close, first_token)
        return asyncio.run(run_demo(users, seed, setting, on_progress=moved))


def _setting(provider: Provider, on_close: OnClose, first_token: float) -> Setting:
    from hangup.demo.workload import Setting  # noqa: PLC0415  the extra may be missing

    return Setting(provider.value, on_close.value, first_token)


def _serve(
    users: int, seed: int, setting: Setting, port: int, rounds: int | None
) -> int:
    """Serve until Ctrl-C; return the exit code."""
    try:
        scraping = find_spec(_SCRAPING)
    except ModuleNotFoundError:
        scraping = None
    if scraping is None:
        return say_missing(_SCRAPING, extra="demo,prometheus")
    from rich.console import Console  # noqa: PLC0415  only where asked for

    from hangup.demo.serving import (  # noqa: PLC0415
        PortTakenError,
        Round,
        serve_demo,
    )

    console = Console(highlight=False, soft_wrap=True)

    def ready(_rig: object) -> None:
        console.print(f"agent     http://127.0.0.1:{port}/metrics")
        console.print(f"subagent  http://127.0.0.1:{port + 1}/metrics")
        console.print("Ctrl-C ends it.")

    def told(one: Round) -> None:
        console.print(
            f"round {one.number}: {len(one.visits)} visits, {one.left} walked away"
        )

    serving = serve_demo(
        users,
        seed,
        setting,
        port,
        rounds=rounds,
        on_ready=ready,
        on_round=told,
    )
    try:
        asyncio.run(serving)
    except KeyboardInterrupt:
        return 0
    except PortTakenError as error:
        Console(stderr=True, highlight=False, soft_wrap=True).print(
            f"cannot be scraped there: {error}. Give two free ones with --port"
        )
        return _WRONG
    return 0
