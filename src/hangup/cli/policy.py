"""``hangup policy check FILE``: is a policy file right, and what would a run get?"""

from __future__ import annotations

import json
import math
from pathlib import Path  # noqa: TC003  typer reads the annotation
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hangup.core.rules import EFFECTS, MATCHERS
from hangup.errors import ConfigError
from hangup.otel import policyfile

if TYPE_CHECKING:
    from hangup.core.rules import Rule, Rules

app = typer.Typer(help="The policy file of a rollout.", no_args_is_help=True)

_WRONG = 2


@app.callback()
def _policy() -> None:
    """The policy file of a rollout."""


@app.command()
def check(
    file: Annotated[Path, typer.Argument(help="YAML or JSON.", show_default=False)],
    route: Annotated[
        str | None, typer.Option(help="Path of a request: which rule would it get?")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of a run.")] = None,
    tenant: Annotated[str | None, typer.Option(help="Whom a run is for.")] = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Check a policy file; say which rule a run would get, if one is described.

    The exit status is 0, or 2 for a file that cannot be used.
    """
    try:
        rules = policyfile.parse(str(file), policyfile.read(str(file)))
    except ConfigError as error:
        _say_wrong(file, error, as_json=as_json)
        raise typer.Exit(_WRONG) from None
    asked = any(value is not None for value in (route, name, tenant))
    paths = () if route is None else (route,)
    found = rules.match(paths, name or "", tenant or "")
    if as_json:
        answer = _summary(rules)
        if asked:
            answer["match"] = None if found is None else _fields(found)
        typer.echo(json.dumps(answer, indent=2))
        return
    console = Console(highlight=False)
    many = f"{len(rules.rules)} rule{'' if len(rules.rules) == 1 else 's'}"
    default = "and a default" if rules.default is not None else "no default"
    console.print(
        Text.assemble(
            ("right  ", "bold green"), f"{file}: {many}, {default}  ({rules.digest})"
        )
    )
    console.print(_table(rules, found if asked else None))
    if asked:
        console.print(_verdict(found))


def _say_wrong(file: Path, error: ConfigError, *, as_json: bool) -> None:
    if as_json:
        typer.echo(
            json.dumps({"file": str(file), "ok": False, "error": str(error)}, indent=2)
        )
        return
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    console.print(Text.assemble(("wrong  ", "bold red"), str(error)))


def _summary(rules: Rules) -> dict[str, Any]:
    default = rules.default
    return {
        "ok": True,
        "policy": rules.digest,
        "rules": [_fields(rule) for rule in rules.rules],
        "default": None if default is None else _fields(default),
    }


def _fields(rule: Rule) -> dict[str, Any]:
    fields: dict[str, Any] = {"rule": rule.number or "default", "line": rule.line}
    for key in MATCHERS:
        if patterns := getattr(rule, key):
            fields[key] = [pattern.text for pattern in patterns]
    for key in EFFECTS:
        value = getattr(rule, key)
        if value is not None and (key, value) != ("share", 100.0):
            fields[key] = "none" if value == math.inf else value
    return fields


def _table(rules: Rules, found: Rule | None) -> Table:
    table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 2, 0, 0))
    for heading in ("", "rule", "line", "for", "gets"):
        table.add_column(heading, no_wrap=heading in ("rule", "line"))
    default = () if rules.default is None else (rules.default,)
    for rule in (*rules.rules, *default):
        fields = _fields(rule)
        wanted = [
            f"{key} {' | '.join(fields[key])}" for key in MATCHERS if key in fields
        ]
        gets = [_effect(key, fields[key]) for key in EFFECTS if key in fields]
        table.add_row(
            ">" if rule is found else "",
            str(fields["rule"]),
            str(rule.line),
            Text(", ".join(wanted) or "everything else"),
            Text(", ".join(gets)),
            style="bold" if rule is found else "",
        )
    return table


def _effect(key: str, value: Any) -> str:
    if key == "share":
        return f"{value:g} % of the runs (the others observe)"
    if key in ("budget", "grace"):
        return f"{key} {value}" if value == "none" else f"{key} {value:g} s"
    return str(value) if key == "mode" else f"{key} {value}"


def _verdict(found: Rule | None) -> Text:
    if found is None:
        return Text("No rule matches: the run gets what it gets without a policy file.")
    which = f"rule {found.number}" if found.number else "the default"
    gets = ", ".join(
        _effect(key, value) for key, value in _fields(found).items() if key in EFFECTS
    )
    return Text(f"The run gets {which} (line {found.line}): {gets}.")
