"""``hangup dashboards export DIR``: the dashboards and alerts that come with hangup."""

from __future__ import annotations

from enum import StrEnum
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.console import Console

import hangup

if TYPE_CHECKING:
    from collections.abc import Iterator
    from importlib.resources.abc import Traversable

app = typer.Typer(help="Dashboards and alerts.", no_args_is_help=True)

_RUNBOOK: Final = "RUNBOOK.md"
_NOWHERE: Final = "https://example.invalid/hangup/dashboards/RUNBOOK.md"
_FAILED: Final = 2


class Format(StrEnum):
    """Who is to read the files."""

    GRAFANA = "grafana"
    """Dashboards as JSON, to import by hand or by a file provider."""
    PROVISIONING = "provisioning"
    """Alerts as Grafana provisions them."""
    KUBERNETES = "kubernetes"
    """Dashboards as labelled ConfigMaps, alerts as a PrometheusRule."""
    PROMETHEUS = "prometheus"
    """Recording rules and alerts for Prometheus itself."""


@app.callback()
def _dashboards() -> None:
    """Dashboards and alerts for Grafana, Prometheus and Kubernetes."""


@app.command()
def export(
    directory: Annotated[
        Path,
        typer.Argument(
            metavar="DIR", help="Where to; made if need be.", show_default=False
        ),
    ],
    form: Annotated[
        Format | None,
        typer.Option("--format", help="Only these; else a folder for each."),
    ] = None,
    runbook_url: Annotated[
        str | None,
        typer.Option(help="Where your runbook is served: alerts link to its sections."),
    ] = None,
) -> None:
    """Write the dashboards, rules and alerts into a folder, and the runbook beside.

    Files of an earlier export are replaced. The exit status is 0, or 2 where the folder
    cannot be written.
    """
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    count = 0
    try:
        for name, text in _texts(form):
            path = directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text.replace(_NOWHERE, runbook_url or _NOWHERE))
            count += 1
    except OSError as error:
        console.print(f"cannot write there: {error}. Give a folder that can be written")
        raise typer.Exit(_FAILED) from None
    typer.echo(f"wrote {count} files to {directory}")
    if runbook_url is None and form is not Format.GRAFANA:
        console.print(
            f"alerts link to {_NOWHERE}: serve {_RUNBOOK} where your people can read "
            "it, and export again with --runbook-url"
        )


def _texts(form: Format | None) -> Iterator[tuple[str, str]]:
    """Return every file as its name below the folder, and its content."""
    top = _top()
    for one in Format if form is None else (form,):
        for entry in sorted((top / one.value).iterdir(), key=lambda found: found.name):
            name = entry.name if form is not None else f"{one.value}/{entry.name}"
            yield name, entry.read_text()
    runbook = top / _RUNBOOK
    yield _RUNBOOK, (runbook if runbook.is_file() else _source() / _RUNBOOK).read_text()


def _top() -> Traversable:
    """Return where the files are: in the package, or beside an editable install."""
    packaged = files(hangup) / "dashboards"
    return packaged if packaged.is_dir() else _source() / "generated"


def _source() -> Path:
    return Path(hangup.__file__).parents[2] / "dashboards"
