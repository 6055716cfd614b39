"""Shows what the doctor has found."""

from __future__ import annotations

import os
from itertools import groupby
from typing import TYPE_CHECKING, Any

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from hangup.cli._doctor_checks import CHECKS, check_of
from hangup.cli._doctor_evidence import Severity

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from hangup.cli._doctor_evidence import Evidence, Finding, Source

_STYLE = {
    Severity.ERROR: "bold red",
    Severity.WARNING: "bold yellow",
    Severity.NOTICE: "bold blue",
}
# What findings say of the process as a whole.
_NOT_MEASURED = frozenset(
    (
        *("not-installed", "mode-off", "no-sdk", "provider-unwatched"),
        *("processor-missing", "no-exporter"),
    )
)
_PARTLY_MEASURED = frozenset(
    (
        *("sampler", "processor-order", "requests-unwatched", "outside-runs"),
        *("wire-unwatched", "usage-unknown", "prefork-metrics"),
    )
)
_NOT_STOPPED = frozenset(
    ("not-installed", "mode-off", "requests-unwatched", "brake-tripped")
)
_STOPPED = {
    "observe": "no: it observes",
    "refuse": "new calls",
    "enforce": "yes",
    "unset": "runs in code",
}


def as_json(evidence: Evidence, findings: Sequence[Finding]) -> dict[str, Any]:
    """Return everything as plain values."""
    return {
        "ok": not any(counts(one) for one in findings),
        "findings": [
            {
                "id": one.check,
                "severity": check_of(one).severity.value,
                "where": one.where,
                "detail": one.detail,
                "what": check_of(one).what,
                "why": check_of(one).why,
                "mend": check_of(one).mend,
            }
            for one in findings
        ],
        "looked_at": [
            {
                "where": one.where,
                "mode": one.mode,
                "measured": _measured(one, findings),
                "stopped": _stopped(one, findings),
                **(one.facts or {}),
            }
            for one in evidence.sources
        ],
    }


def counts(finding: Finding) -> bool:
    """Whether a finding changes the exit status."""
    return check_of(finding).severity is not Severity.NOTICE


def show(console: Console, evidence: Evidence, findings: Sequence[Finding]) -> None:
    """Print what was looked at, what is wrong with it and how to mend it."""
    console.print(_looked_at(evidence, findings))
    for check, group in groupby(findings, key=check_of):
        style = _STYLE[check.severity]
        console.print()
        console.print(
            Text.assemble(
                (f"{check.severity.value:<8}", style),
                (f"{check.what[0].upper()}{check.what[1:]}", "bold"),
                (f"  {check.id}", "dim"),
            )
        )
        several = list(group)
        for one in several:
            line = Text.assemble(("Found: ", style), one.detail)
            if len(evidence.sources) > 1:
                line.append(f"  ({one.where})", style="dim")
            console.print(Padding(line, (0, 0, 0, 8)))
        console.print(Padding(Text(check.why), (0, 0, 0, 8)))
        mend = Text.assemble(("To mend it: ", "green"), _code(check.mend))
        console.print(Padding(mend, (0, 0, 0, 8)))
    console.print()
    console.print(_verdict(findings, len(CHECKS)))


def _code(text: str) -> Text:
    shown = Text()
    for number, part in enumerate(text.split("`")):
        shown.append(part, style="cyan" if number % 2 else "")
    return shown


def _has(source: Source, findings: Sequence[Finding], ids: frozenset[str]) -> bool:
    return any(
        one.check in ids and source.where in one.where.split(", ") for one in findings
    )


def _measured(source: Source, findings: Sequence[Finding]) -> str:
    if not source.has_hangup or _has(source, findings, _NOT_MEASURED):
        return "no"
    return "in part" if _has(source, findings, _PARTLY_MEASURED) else "yes"


def _stopped(source: Source, findings: Sequence[Finding]) -> str:
    if _has(source, findings, _NOT_STOPPED):
        return "no"
    return _STOPPED.get(source.mode or "", "no")


def _looked_at(evidence: Evidence, findings: Sequence[Finding]) -> Table:
    table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 2, 0, 0))
    for heading in (
        *("looked at", "mode", "measured", "stopped"),
        *("sampler", "metrics to", "spans to"),
    ):
        table.add_column(heading, overflow="fold")
    for one in evidence.sources:
        tracing, metering = one.part("tracing"), one.part("metrics")
        spans = [
            _short(name)
            for part in tracing.get("processors") or ()
            for name in part["exporters"]
        ]
        numbers = [
            _short(reader["exporter"] or reader["name"])
            for reader in metering.get("readers") or ()
        ]
        unseen = "" if one.facts is None else "nobody"
        table.add_row(
            one.where,
            (one.mode or "?") if one.has_hangup else "no hangup",
            _measured(one, findings),
            _stopped(one, findings),
            tracing.get("sampler") or "",
            ", ".join(dict.fromkeys(numbers)) or unseen,
            ", ".join(dict.fromkeys(spans)) or unseen,
        )
    return table


def _short(name: str) -> str:
    module, _, cls = name.rpartition(".")
    if module.startswith("opentelemetry.exporter.otlp"):
        return f"OTLP over {'gRPC' if 'grpc' in module else 'HTTP'}"
    bare = cls.removeprefix("_Auto").removesuffix("MetricReader")
    return bare.removesuffix("Exporter").removesuffix("Metric").removesuffix("Span")


def _verdict(findings: Sequence[Finding], looked_for: int) -> Text:
    wrong = [one for one in findings if counts(one)]
    notices = len(findings) - len(wrong)
    more = f", {notices} to know" if notices else ""
    of = f"  (of {looked_for} that were looked for{more})"
    if not wrong:
        return Text.assemble(("Nothing is wrong", "bold green"), (of, "dim"))
    many = f"{len(wrong)} thing{'' if len(wrong) == 1 else 's'} wrong"
    return Text.assemble((many, "bold red"), (of, "dim"))


def name_of(facts: dict[str, Any]) -> str:
    """Return what a process is called: its service or its program, and its number."""
    service = facts.get("service")
    words = facts.get("argv") or ["python"]
    program = os.path.basename(words[0]) or "python"  # noqa: PTH119  any text
    if not service or str(service).startswith("unknown_service"):
        service = program if program != "-c" else "python"
    return f"{service} ({facts['pid']})"


def worth_showing(source: Source) -> bool:
    """Whether a process is of the application: it has hangup, or could want it."""
    facts = source.facts or {}
    loaded = source.part("clients").get("loaded") or ()
    return bool(
        source.has_hangup
        or facts.get("servers")
        or any(name in loaded for name in ("openai", "anthropic"))
    )
