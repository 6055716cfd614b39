"""The page that ``hangup demo --html FILE`` writes: self-contained, nothing fetched."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from hangup.demo.picture_style import CSS
from hangup.demo.scene import stories
from hangup.demo.timeline import timeline_svg

if TYPE_CHECKING:
    from hangup.demo.results import Demo
    from hangup.demo.scene import Story


def page(demo: Demo) -> str:
    """Return the whole HTML document."""
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        "<title>hangup demo</title>",
        f"<style>{CSS}</style></head><body><main>",
        "<h1>The user leaves. What happens to the work?</h1>",
        f'<p class="lead">{_lead(demo)}</p>',
        _tiles(demo),
        _LEGEND,
        *(_section(story) for story in stories(demo)),
        f"<footer>{_footer(demo)}</footer>",
        "</main></body></html>",
    ]
    return "\n".join(parts) + "\n"


def _lead(demo: Demo) -> str:
    left = sum(1 for visit in demo.observe.visits if visit.left is not None)
    return (
        f"{demo.users} people asked a research agent over real connections, and {left} "
        "of them walked away. First hangup only watched; then the same people came "
        "again, and hangup stopped what nobody was waiting for any more."
    )


def _tiles(demo: Demo) -> str:
    observe, enforce = demo.observe, demo.enforce
    tiles = [
        _tile(
            "Tokens wasted after the user left",
            f"{observe.truth.all_wasted_tokens:,}",
            f"{enforce.truth.all_wasted_tokens:,}",
            f"{demo.wasted_tokens_ratio:.2%} of the waste is left",
        ),
        _tile(
            "Model calls begun for nobody",
            f"{observe.truth.wasted_calls:,}",
            f"{enforce.truth.wasted_calls:,}",
            f"of {len(observe.calls)} and {len(enforce.calls)} calls",
        ),
        _tile(
            "Last model call closed, p95",
            f"{observe.stop_seconds.p95:.2f} s",
            f"{enforce.stop_seconds.p95 * 1000:.0f} ms",
            "from the moment the user left",
        ),
        _tile(
            "Answers in time, lost or changed",
            "0",
            f"{len(demo.broken_answers)}",
            f"answers past their deadline, lost: {len(demo.lost_answers)}",
            look="now",
        ),
    ]
    return f'<div class="tiles">{"".join(tiles)}</div>'


def _tile(title: str, was: str, now: str, note: str, *, look: str = "was") -> str:
    return (
        f'<div class="tile"><h3>{escape(title)}</h3><div class="pair">'
        f'<span class="{look}">{was}</span><span class="to">&rarr;</span>'
        f'<span class="now">{now}</span></div>'
        f'<div class="note">{escape(note)}</div></div>'
    )


def _key(drawing: str, meaning: str, width: int = 26) -> str:
    return f'<span><svg width="{width}" height="16">{drawing}</svg>{meaning}</span>'


_CALL = '<rect class="call" y="3" width="{}" height="10" rx="3"/>'
_LEGEND = "\n".join(
    [
        '<div class="legend">',
        _key(_CALL.format(26), "model call"),
        _key(
            '<rect class="wasted" y="3" width="26" height="10" rx="3"/>',
            "model call for nobody: waste",
        ),
        _key(
            '<rect class="step" x=".5" y="1.5" width="25" height="13" rx="3"/>',
            "agent or tool at work",
        ),
        _key(
            _CALL.format(20) + '<line class="cut" x1="22" x2="22" y1="1" y2="15"/>',
            "cut in flight",
        ),
        _key(
            '<line class="t0" x1="4" x2="4" y1="0" y2="16"/>',
            "user left, or enforced deadline",
            8,
        ),
        "</div>",
    ]
)


def _section(story: Story) -> str:
    return (
        f'<section class="story"><header><h2>{escape(story.title)}</h2>'
        f"<span>{escape(story.who)}</span></header>"
        f"{timeline_svg(story)}</section>"
    )


def _footer(demo: Demo) -> str:
    return (
        f"hangup {escape(demo.version)}, {demo.users} users, seed {demo.seed}. "
        "Bars and tokens (input and output) come from the model server's own log and "
        "the users' own clocks, not from what hangup measured. A row without a bar was "
        "never begun."
    )
