"""``hangup doctor``: what is not protected and not measured, and how to mend it."""

from __future__ import annotations

import json
import time
from pathlib import Path  # noqa: TC003  typer reads the annotation
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.console import Console
from rich.text import Text

from hangup.cli import _doctor_show
from hangup.cli._doctor_checks import CHECKS, judge
from hangup.cli._doctor_evidence import Evidence, Sample, Source
from hangup.cli._doctor_launch import Command, CouldNotLookError, ask_all
from hangup.cli._doctor_scrape import fetch, scrape

if TYPE_CHECKING:
    from typing import Any

_WRONG: Final = 1
_COULD_NOT_LOOK: Final = 2
_PATIENCE: Final = 90.0


def doctor(  # noqa: PLR0913, PLR0917  one for each option
    command: Annotated[
        list[str] | None,
        typer.Argument(
            help="After --, the application's own start command: it is started, looked "
            "at from inside, and ended.",
            show_default=False,
        ),
    ] = None,
    metrics: Annotated[
        list[str] | None,
        typer.Option(
            "--metrics", help="URL that Prometheus scrapes; once for each service."
        ),
    ] = None,
    directory: Annotated[
        Path | None,
        typer.Option(
            "--dir", help="HANGUP_DOCTOR of services that run; all in it are asked."
        ),
    ] = None,
    get: Annotated[
        list[str] | None,
        typer.Option(
            "--get", help="URL to ask the started application for before looking."
        ),
    ] = None,
    seconds: Annotated[
        float,
        typer.Option("--for", help="Let it work so many seconds before looking."),
    ] = 0.0,
    ignore: Annotated[
        list[str] | None,
        typer.Option("--ignore", help="Id of a finding that is known."),
    ] = None,
    foreign: Annotated[
        list[str] | None,
        typer.Option("--foreign", help="Host or .suffix that is not your own."),
    ] = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Say what is not protected and not measured, and how to mend it.

    The exit status is 0 where nothing is wrong, 1 where something is, and 2 where
    nothing could be looked at.
    """
    evidence = Evidence(foreign=tuple(foreign or ()))
    try:
        _check_options(command, metrics, directory, ignore)
        if command:
            evidence.sources += _from_command(command, get or [], seconds)
        if directory is not None:
            evidence.sources += _from_directory(directory)
        evidence.sources += [scrape(url) for url in metrics or ()]
    except CouldNotLookError as error:
        _say(str(error), as_json=as_json)
        raise typer.Exit(_COULD_NOT_LOOK) from None
    findings = judge(evidence, ignore or ())
    if as_json:
        typer.echo(json.dumps(_doctor_show.as_json(evidence, findings), indent=2))
    else:
        _doctor_show.show(Console(highlight=False), evidence, findings)
    if any(_doctor_show.counts(one) for one in findings):
        raise typer.Exit(_WRONG)


def _check_options(
    command: list[str] | None,
    metrics: list[str] | None,
    directory: Path | None,
    ignore: list[str] | None,
) -> None:
    if not (command or metrics or directory):
        raise CouldNotLookError(
            "say what to look at: hangup doctor -- COMMAND, --metrics URL or --dir DIR"
        )
    unknown = set(ignore or ()) - {check.id for check in CHECKS}
    if unknown:
        raise CouldNotLookError(
            f"there is no finding {', '.join(sorted(unknown))}; there are "
            f"{', '.join(check.id for check in CHECKS)}"
        )


def _from_command(command: list[str], urls: list[str], seconds: float) -> list[Source]:
    with Command(command) as running:
        running.come_up(_PATIENCE)
        status = running.status
        if status is None:
            for url in urls:
                fetch(url)
            time.sleep(seconds)
        sources = _sources(ask_all(running.directory))
        status = running.status
        if sources and not status:
            return sources
        if status:
            why = f"the command ended with status {status}"
        else:
            why = "no Python of the command answered from inside"
        raise CouldNotLookError(f"{why}. The last of what it said:\n{running.output}")


def _from_directory(directory: Path) -> list[Source]:
    sources = _sources(ask_all(directory)) if directory.is_dir() else []
    if not sources:
        raise CouldNotLookError(
            f"no process answers in {directory}: start the services with "
            f"HANGUP_DOCTOR={directory}, a directory of their user alone"
        )
    return sources


def _sources(told: list[dict[str, Any]]) -> list[Source]:
    sources = [
        Source(
            _doctor_show.name_of(facts),
            facts,
            [Sample(*sample) for sample in facts["samples"]],
        )
        for facts in told
    ]
    return [one for one in sources if _doctor_show.worth_showing(one)] or sources


def _say(why: str, *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps({"ok": False, "error": why}, indent=2))
        return
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    console.print(Text.assemble(("could not look  ", "bold red"), why))
