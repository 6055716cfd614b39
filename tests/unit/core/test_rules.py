"""Rules: the first that matches wins, shares are nested, and mistakes have a line."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hangup.config import Mode, OnDisconnect
from hangup.core.document import read_json
from hangup.core.rules import Rules, compiled, place_of, read_rules
from hangup.core.token import new_token_id
from hangup.errors import ConfigError


def rules_of(document: Any) -> Rules:
    return read_rules("p.json", read_json("p.json", json.dumps(document)), "d")


RULES = rules_of(
    {
        "rules": [
            {"route": "/chat/*", "tenant": ["acme", "beta-*"], "mode": "enforce"},
            {"route": ["/threads/{id}/chat", "/files/{rest:path}"], "budget": 5},
            {"name": "research?", "mode": "refuse"},
            {"tenant": "*", "on_disconnect": "grace", "grace": 7},
            {"route": "*", "mode": "off"},
        ],
        "default": {"mode": "observe", "share": "50%", "budget": "none"},
    }
)


@pytest.mark.parametrize(
    ("paths", "name", "tenant", "number"),
    [
        (("/chat/a/b",), "", "acme", 1),
        (("/chat/a",), "", "beta-7", 1),
        (("/chat/a",), "", "beta", 4),
        (("/chat/a",), "", "", 5),
        (("/app/chat/a", "/chat/a"), "", "acme", 1),
        (("/threads/1/chat",), "", "", 2),
        (("/threads/1/2/chat",), "", "", 5),
        (("/files/a/b",), "", "", 2),
        ((), "research1", "", 3),
        ((), "research10", "", 0),
        (("/research1",), "research1", "", 3),
        (("research2",), "http", "", 3),
        ((), "chat", "x", 4),
        ((), "", "", 0),
    ],
)
def test_the_first_rule_whose_patterns_all_match_wins(
    paths: tuple[str, ...], name: str, tenant: str, number: int
) -> None:
    found = RULES.match(paths, name, tenant)
    assert found is not None
    assert found.number == number


def test_a_template_matches_the_pattern_it_was_written_as() -> None:
    assert compiled("/threads/{id}/chat").fullmatch("/threads/{thread_id}/chat")
    assert not compiled("/a.c").fullmatch("/abc")


def test_without_a_default_nothing_may_match() -> None:
    assert (
        rules_of({"rules": [{"name": "a", "mode": "off"}]}).match((), "b", "") is None
    )
    assert rules_of(None).match(("/",), "b", "c") is None
    assert rules_of({"rules": None}).rules == ()


def test_effects_are_read() -> None:
    assert RULES.default is not None
    assert (RULES.default.share, RULES.default.budget) == (50.0, math.inf)
    assert RULES.rules[3].on_disconnect is OnDisconnect.GRACE
    assert RULES.rules[3].grace == 7.0
    assert RULES.rules[1].budget == 5.0
    assert RULES.rules[1].mode is None


# The share


@given(st.binary(min_size=16, max_size=16).map(bytes.hex))
def test_a_larger_share_holds_the_smaller_one(token: str) -> None:
    shares = (0, 0.1, 5, 50, 99.9, 100)
    modes = [
        rules_of({"default": {"mode": "enforce", "share": share}}) for share in shares
    ]
    got = [one.default.mode_for(token) for one in modes if one.default is not None]
    assert got == sorted(got, key=[None, Mode.OBSERVE, Mode.ENFORCE].index)
    assert (got[0], got[-1]) == (Mode.OBSERVE, Mode.ENFORCE)
    assert 0 <= place_of(token) < 100


def test_the_share_is_as_large_as_it_says_whatever_the_tokens() -> None:
    for tokens in (
        [new_token_id() for _ in range(4_000)],
        [f"{number:032x}" for number in range(4_000)],
    ):
        inside = sum(place_of(token) < 5 for token in tokens)
        assert 120 < inside < 290  # 200 +- 6 standard deviations


def test_the_hash_is_the_same_in_every_release() -> None:
    assert place_of("0123456789abcdef" * 2) == pytest.approx(10.697118679566486)


def test_a_share_of_off_is_off_and_one_without_a_mode_observes_the_rest() -> None:
    off = rules_of({"default": {"mode": "off", "share": 0}}).default
    rest = rules_of({"default": {"share": 0}}).default
    assert off is not None
    assert rest is not None
    assert off.mode_for("x") is Mode.OFF
    assert rest.mode_for("x") is Mode.OBSERVE


# Mistakes


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[]", "line 1: the file=[] cannot be used: give a mapping with any of rules"),
        ('{\n"ruels": []}', "line 2: ruels=[] cannot be used: no such key of the file"),
        ('{"rules":\n{}}', "line 1: rules={} cannot be used: give a list of at most"),
        ('{"rules": [\n1]}', "line 2: rule 1=1 cannot be used: give a mapping"),
        (
            '{"rules": [{"mode": "off"},\n{"mode": "off",\n"rout": "/"}]}',
            "line 3: rout='/' cannot be used: no such key of rule 2; there are route,",
        ),
        ('{"default":\n{"route": "/"}}', "no such key of default; there are mode,"),
        (
            '{"default": {\n"mode": "loud"}}',
            "line 2: mode='loud' cannot be used: choose",
        ),
        ('{"default": {"share": 101}}', "share=101 cannot be used: give a percentage"),
        ('{"default": {"share": "x"}}', "give a percentage"),
        ('{"default": {"share": NaN}}', "give a percentage"),
        ('{"default": {"budget": 0}}', "give more than zero seconds, or none"),
        ('{"default": {"budget": -1}}', "give seconds as a number"),
        (
            '{"default": {"budget": null}}',
            "write none where there is to be no deadline",
        ),
        ('{"default": {"mode": ["off"]}}', "give one value"),
        ('{"default": {"grace": "x"}}', "grace='x' cannot be used: give seconds"),
        ('{"default": {"on_disconnect": "x"}}', "choose one of abandon, grace, finish"),
        (
            '{"rules": [{"route": "/"}]}',
            "rule 1={'route': Ellipsis} cannot be used: say",
        ),
        ('{"rules": [{"route": [], "mode": "off"}]}', "give a pattern, or a list"),
        ('{"rules": [{"route": [[]], "mode": "off"}]}', "give a pattern, or a list"),
        ('{"rules": [{"route": "", "mode": "off"}]}', "give a pattern, or a list"),
    ],
)
def test_a_mistake_names_the_file_the_line_and_what_is_allowed(
    text: str, says: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        read_rules("p.json", read_json("p.json", text), "d")
    assert str(raised.value).startswith("p.json, line ")
    assert says in str(raised.value)
