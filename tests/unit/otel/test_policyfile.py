"""A policy file is YAML, or JSON where PyYAML is missing, and errors know the line."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hangup.config import Mode
from hangup.core.rules import digest_of
from hangup.errors import ConfigError
from hangup.otel import policyfile
from hangup.otel.policyfile import MissingLibraryError, parse, read

if TYPE_CHECKING:
    from pathlib import Path

TEXT = b"""\
# staging
rules:
  - route: [/chat/*, "/live/{id}"]
    tenant: 42
    mode: enforce
    share: 5%
    budget: 30
  - name: night
    mode: off
  - tenant: 2024-01-01
    budget: none
    grace: 1_000
default: &rest
  mode: observe
"""


def test_yaml_says_what_it_seems_to_say() -> None:
    rules = parse("p.yaml", TEXT)
    one, two, three = rules.rules
    assert rules.match(("/live/1",), "", "42") is one
    assert (one.mode, one.share, one.budget, one.line) == (Mode.ENFORCE, 5, 30, 3)
    assert two.mode is Mode.OFF  # in YAML 1.1 a plain off is a boolean
    assert rules.match((), "", "2024-01-01") is three
    assert three.grace == 1_000
    assert rules.default is not None
    assert rules.default.mode is Mode.OBSERVE
    assert rules.digest == digest_of(TEXT)


def test_an_empty_file_has_no_rules() -> None:
    assert parse("p.yaml", b"# nothing yet\n").rules == ()
    assert parse("p.yaml", b"").default is None


def test_an_alias_is_its_anchor() -> None:
    rules = parse(
        "p.yaml", b"rules:\n- &a {name: x, mode: off}\n- *a\ndefault: {mode: off}\n"
    )
    assert [rule.mode for rule in rules.rules] == [Mode.OFF, Mode.OFF]


def test_aliases_of_aliases_are_not_copied() -> None:
    levels = "\n".join(
        f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 40)
    )
    with pytest.raises(ConfigError, match="no such key of the file"):
        parse("p.yaml", f"a0: &a0 [x]\n{levels}\n".encode())


WRONG = [
    (
        b"rules:\n- route: /\n  mode: loud\n",
        "p.yaml, line 3: mode='loud' cannot be used",
    ),
    (b"rules:\n- rout: /\n", "p.yaml, line 2: rout='/' cannot be used: no such key"),
    (
        b"a: 1\na: 2\n",
        "p.yaml, line 2: the key='a' cannot be used: it is there already",
    ),
    (b"default:\n  mode: [off\n", "p.yaml, line 3"),
    (b"default:\n\tmode: off\n", "p.yaml, line 2"),
    (b"a: b: c\n", "p.yaml, line 1='a: b: c' cannot be used: mapping values are not"),
    (b"? [a]\n: 1\n", "p.yaml, line 1='...' cannot be used: give a name as the key"),
    (b"rules: &a\n- *a\n", "contains itself"),
    (b"default: {mode: *x}\n", "p.yaml, line 1"),
    (b"default: !!python/object:os.system {}\n", "say what it does"),
    (b"--- {}\n--- {}\n", "p.yaml, line 2"),
    (
        b"default:\n  mode: \xff\n",
        "p.yaml, line 2='...' cannot be used: write the file",
    ),
    (b"a: \x00\n", "is not YAML"),
    (b"[" * 5_000, "nested too deep"),
]


@pytest.mark.parametrize(("content", "says"), WRONG)
def test_what_is_wrong_is_named_with_its_line(content: bytes, says: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse("etc/p.yaml", content)
    assert says in str(raised.value)


@given(st.binary(max_size=60))
def test_any_content_is_rules_or_a_mistake(content: bytes) -> None:
    with suppress(ConfigError):
        assert parse("p.yaml", content).rules == ()


@pytest.fixture
def without_yaml(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)


DOCUMENT: dict[str, Any] = {"rules": [{"name": "x", "mode": "off"}]}


@pytest.mark.parametrize("name", ["p.yaml", "p.json", "policy"])
@pytest.mark.usefixtures("without_yaml")
def test_json_needs_nothing_whatever_the_file_is_called(name: str) -> None:
    rules = parse(name, json.dumps(DOCUMENT).encode())
    assert rules.rules[0].mode is Mode.OFF


@pytest.mark.usefixtures("without_yaml")
def test_yaml_without_pyyaml_says_what_to_install() -> None:
    with pytest.raises(MissingLibraryError, match=r"pip install 'hangup\[policy\]'"):
        parse("p.yaml", TEXT)
    with pytest.raises(ConfigError, match=r"p\.json, line 1"):
        parse("p.json", TEXT)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read(str(tmp_path / "absent"))
    (tmp_path / "large").write_bytes(b"#" * (policyfile.MOST_BYTES + 1))
    with pytest.raises(ConfigError, match="larger than 1000000 bytes"):
        read(str(tmp_path / "large"))
