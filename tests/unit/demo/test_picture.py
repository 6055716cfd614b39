from __future__ import annotations

import re
from html.parser import HTMLParser
from io import StringIO
from typing import TYPE_CHECKING

import pytest
from rich.console import Console
from support.demo import a_call, a_demo, a_pass, a_step, a_user, a_visit, point

from hangup.demo.picture import page
from hangup.demo.population import Kind
from hangup.demo.results import Pass
from hangup.demo.scene import stories
from hangup.demo.table import table_of

if TYPE_CHECKING:
    from hangup.demo.results import Demo


@pytest.fixture
def demo() -> Demo:
    """Return a user who left at 2 s: two calls done, one under way, one to come."""
    user = a_user("u001")
    paths = ("plan 1", "delegate/claims", "answer")
    watched = [
        a_call(at, at + 1.5, path=path, user="observe/u001", chunks=((at + 1.2, 9),))
        for at, path in zip((0.0, 1.2, 3.0), paths, strict=True)
    ]
    cut = [
        a_call(0.0, 1.5, path=paths[0], user="enforce/u001", chunks=((1.2, 9),)),
        a_call(1.2, 2.01, path=paths[1], user="enforce/u001", cut=True),
    ]
    steps = [
        a_step("research", 0.0, 4.5, "observe/u001"),
        a_step("delegate", 1.1, 2.8, "observe/u001"),
        a_step("delegate/subagent", 1.2, 2.7, "observe/u001"),
    ]
    return a_demo(
        a_pass("observe", [a_visit(user=user, left=2.0)], watched, steps),
        a_pass("enforce", [a_visit(user=user, mode="enforce", left=2.0)], cut),
    )


class _Balance(HTMLParser):
    """Fails on a tag that is closed but was not opened last."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_well_formed_and_fetches_nothing(demo: Demo) -> None:
    text = page(demo)
    parser = _Balance()
    parser.feed(text)
    parser.close()
    assert parser.open == []
    assert not re.search(r"https?:|src=|@import|url\(|<script|<link", text)


def test_rows_are_the_tree_of_work_and_both_panels_share_them(demo: Demo) -> None:
    (story,) = stories(demo)
    assert story.rows == (
        "research",
        "plan 1",
        "delegate",
        "delegate/subagent",
        "delegate/claims",
        "answer",
    )
    assert [panel.mode for panel in story.panels] == ["observe", "enforce"]


def test_the_moment_the_user_left_is_drawn_in_both_panels(demo: Demo) -> None:
    text = page(demo)
    assert text.count("user left 2.00 s") == 2
    assert text.count('<line class="t0"') == 2 + 1  # and one in the legend


def test_a_call_across_t0_is_drawn_in_two_colours_split_there(demo: Demo) -> None:
    (story,) = stories(demo)
    (bar,) = [b for b in story.panels[0].bars if b.path == "delegate/claims"]
    assert (bar.sunk, bar.wasted) == (100, 9)
    assert "claims: 1.50 s, 109 tokens, 9 of them wasted" in page(demo)


def test_a_cut_call_ends_in_a_mark_and_a_row_never_begun_is_empty(demo: Demo) -> None:
    (story,) = stories(demo)
    enforced = story.panels[1]
    assert [bar.path for bar in enforced.bars if bar.cut_at is not None] == [
        "delegate/claims"
    ]
    assert "answer" not in {bar.path for bar in enforced.bars}
    assert page(demo).count('<line class="cut"') == 1 + 1  # and one in the legend


def test_a_late_answer_is_a_story_of_its_deadline() -> None:
    near = a_user("u002", budget=2.0, kind=Kind.NEAR)
    demo = a_demo(
        a_pass("observe", [a_visit(user=near, answer="yes", finished=2.5)]),
        a_pass("enforce", [a_visit(user=near, mode="enforce", finished=2.01)]),
    )
    text = page(demo)
    assert "answered late at 2.50 s" in text
    assert text.count("deadline 2.00 s") == 2
    assert "answer lost" in text


def test_a_population_without_a_story_still_gives_a_page() -> None:
    visits = [a_visit(answer="yes")]
    demo = a_demo(a_pass("observe", visits), a_pass("enforce", visits))
    assert stories(demo) == ()
    assert "</html>" in page(demo)


def test_the_table_shows_both_passes(demo: Demo) -> None:
    out = StringIO()
    Console(file=out, width=80).print(table_of(demo))
    text = out.getvalue()
    assert "observe" in text
    assert "enforce" in text
    assert re.search(r"tokens wasted, truth\W+118\W+0\W", text)
    assert "openai, first token after 0.15 s, stops at the close" in text


def test_the_table_sets_estimate_and_bound_beside_what_happened() -> None:
    left = a_visit(mode="enforce", left=2.0)
    cut = a_call(1.2, 4.0, user=left.tag, chunks=((1.9, 7), (3.0, 40)), cut=True)
    points = [
        point("hangup.estimated.tokens", 96, hangup_basis="estimated"),
        point("hangup.unknown.tokens.bound", 64),
        point("hangup.unknown.calls", 1),
        point("hangup.outcome_unknown.calls", 3),
    ]
    enforce = Pass("enforce", [left], [cut], points, [])
    out = StringIO()
    demo = a_demo(a_pass("observe", [a_visit(left=2.0)]), enforce)
    Console(file=out, width=80).print(table_of(demo))
    rows = [row.split("│")[1:4] for row in out.getvalue().splitlines() if "│" in row]
    cells = {name.strip(): cell.strip() for name, _, cell in rows}
    assert cells["of these untold, truth"] == "100"
    assert cells["estimated"] == "96"
    assert cells["beside these unseen, truth"] == "47"
    assert cells["at most, by hangup's bound"] == "64"
    assert cells["calls of unknown usage"] == "1"
    assert cells["calls of unknown outcome"] == "3"
