"""The two passes side by side, for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Callable

    from hangup.demo.results import Demo, Pass


_LEGEND = """\
truth: the model server's log and the users' clocks; measured: hangup's metrics.
untold: cut before the usage came, so only an estimate can know.
unseen: in an answer that never came, or generated after the close; in no row
above. hangup counts such calls, and bounds their tokens."""


def table_of(demo: Demo) -> Group:
    """Return the comparison, to be printed by rich."""
    table = Table(
        title=_title(demo),
        title_justify="left",
        title_style="bold",
        header_style="bold",
        pad_edge=False,
    )
    table.add_column("")
    table.add_column("observe", justify="right")
    table.add_column("enforce", justify="right")
    for section in (_RUNS, _TOKENS, _UNTOLD, _SECONDS):
        for name, cell in section:
            table.add_row(name, cell(demo.observe), cell(demo.enforce))
        table.add_section()
    return Group(Text(), table, Text(), *_verdict(demo))


def _title(demo: Demo) -> str:
    setting = demo.setting
    close = {"stop": "stops at the close", "finish": "bills on after the close"}
    return (
        f"{demo.users} users, seed {demo.seed}, the same people twice\n"
        f"{setting.provider}, first token after {setting.first_token:g} s, "
        f"{close[setting.on_close]}"
    )


def _verdict(demo: Demo) -> list[Text]:
    lost, broken = len(demo.lost_answers), len(demo.broken_answers)
    return [
        Text.assemble(
            "Enforcing left ",
            (f"{demo.wasted_tokens_ratio:.2%}", "bold green"),
            " of the tokens that were spent after the user had gone.",
        ),
        Text(f"Answers lost because they came past their deadline: {lost}."),
        Text(
            f"Answers in time that went missing or changed: {broken}.",
            style="bold red" if broken else "",
        ),
        Text(_LEGEND, style="dim"),
    ]


def _abandoned(one: Pass) -> str:
    causes = [f"{count} {cause}" for cause, count in one.runs.abandoned.items()]
    return ", ".join(causes) or "0"


_RUNS: tuple[tuple[str, Callable[[Pass], str]], ...] = (
    ("runs", lambda one: f"{one.runs.runs}"),
    ("  delivered", lambda one: f"{one.runs.delivered}"),
    ("  delivered late", lambda one: f"{one.runs.late}"),
    ("  abandoned", _abandoned),
    ("model calls", lambda one: f"{len(one.calls)}"),
    ("  begun after the user had gone", lambda one: f"{one.truth.wasted_calls}"),
    ("  cut in flight", lambda one: f"{one.truth.cut_calls}"),
    ("  refused", lambda one: f"{one.measured.refusals}"),
)

_TOKENS: tuple[tuple[str, Callable[[Pass], str]], ...] = (
    ("tokens delivered, truth", lambda one: f"{one.truth.delivered_tokens:,}"),
    ("  measured", lambda one: f"{one.measured.delivered_tokens:,}"),
    ("tokens sunk, truth", lambda one: f"{one.truth.sunk_tokens:,}"),
    ("  measured", lambda one: f"{one.measured.sunk_tokens:,}"),
    ("tokens wasted, truth", lambda one: f"{one.truth.wasted_tokens:,}"),
    ("  measured", lambda one: f"{one.measured.wasted_tokens:,}"),
    ("dollars wasted, measured", lambda one: f"{one.measured.wasted_usd:.6f}"),
)

_UNTOLD: tuple[tuple[str, Callable[[Pass], str]], ...] = (
    ("of these untold, truth", lambda one: f"{one.truth.estimated_tokens:,}"),
    ("  estimated", lambda one: f"{one.measured.estimated_tokens:,}"),
    ("beside these unseen, truth", lambda one: f"{one.truth.unknown_tokens:,}"),
    (
        "  at most, by hangup's bound",
        lambda one: f"{one.measured.unknown_tokens_bound:,}",
    ),
    ("  calls of unknown usage", lambda one: f"{one.measured.unknown_usage_calls}"),
    ("  calls of unknown outcome", lambda one: f"{one.measured.outcome_unknown_calls}"),
)

_SECONDS: tuple[tuple[str, Callable[[Pass], str]], ...] = (
    ("seconds to stop, p50", lambda one: f"{one.stop_seconds.p50:.3f}"),
    ("seconds to stop, p95", lambda one: f"{one.stop_seconds.p95:.3f}"),
    ("seconds to stop, longest", lambda one: f"{one.stop_seconds.max:.3f}"),
)
