"""The commands, for typer."""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated

import typer

from hangup.cli import bus, dashboards, demo, doctor, policy

app = typer.Typer(
    name="hangup",
    help="SIGHUP for AI agents.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("demo")(demo.demo)
app.command("doctor")(doctor.doctor)
app.add_typer(policy.app, name="policy")
app.add_typer(dashboards.app, name="dashboards")
app.command("ps")(bus.ps)
app.command("kill")(bus.kill)


def _show_version(asked: bool) -> None:  # noqa: FBT001  typer's callback shape
    if asked:
        typer.echo(version("hangup"))
        raise typer.Exit


@app.callback()
def _main(
    *,
    _version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_show_version,
            is_eager=True,
            help="Show the version and exit.",
        ),
    ] = False,
) -> None:
    """SIGHUP for AI agents: when the user leaves, the whole agent tree stops."""
