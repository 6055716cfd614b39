"""Settings are read once, checked where they are given, and never half applied."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hangup import config
from hangup.config import Mode, Settings, from_environment, with_keywords
from hangup.errors import ConfigError

modes = st.sampled_from(Mode)


@given(modes, modes)
def test_the_least_intrusive_of_two_modes_is_the_earlier_in_the_list(
    one: Mode, other: Mode
) -> None:
    order = [Mode.OFF, Mode.OBSERVE, Mode.REFUSE, Mode.ENFORCE]
    assert one.least(other) is order[min(order.index(one), order.index(other))]
    assert one.least(None) is one


def test_two_modes_refuse() -> None:
    assert [mode for mode in Mode if mode.refuses] == [Mode.REFUSE, Mode.ENFORCE]


def test_nothing_set_is_the_defaults() -> None:
    settings = from_environment({})
    assert settings == Settings()
    assert settings.mode is None
    assert settings.budget is None
    assert settings.max_budget == 3600.0
    assert settings.budget_header == "x-hangup-budget"
    assert settings.settle == 5.0
    assert settings.refuse_for == 120.0
    assert settings.hold == 30.0
    assert settings.needs == {}
    assert settings.prices is None
    assert settings.irreversible == settings.propagate_to == settings.tenants == ()


def test_every_setting_is_read_from_its_variable() -> None:
    settings = from_environment(
        {
            "HANGUP_MODE": " Enforce ",
            "HANGUP_BUDGET": "30",
            "HANGUP_MAX_BUDGET": "600",
            "HANGUP_BUDGET_HEADER": "x-budget",
            "HANGUP_SETTLE": "2.5",
            "HANGUP_REFUSE_FOR": "60",
            "HANGUP_HOLD": "10",
            "HANGUP_NEEDS": "inference=2, gpt-4o = 3.5",
            "HANGUP_PRICES": "etc/prices.toml",
            "HANGUP_IRREVERSIBLE": "charge, send_mail,",
            "HANGUP_PROPAGATE_TO": ".example.org",
            "HANGUP_TENANTS": "acme,globex",
            "HANGUP_TENANT_FROM": "header: X-Tenant",
            "HANGUP_POLICY_FILE": "etc/policy.yaml",
            "HANGUP_BRAKE_SHARE": "50%",
            "HANGUP_BRAKE_RUNS": "10",
            "HANGUP_BRAKE_WINDOW": "60",
        }
    )
    assert settings == Settings(
        mode=Mode.ENFORCE,
        budget=30.0,
        max_budget=600.0,
        budget_header="x-budget",
        settle=2.5,
        refuse_for=60.0,
        hold=10.0,
        needs={"inference": 2.0, "gpt-4o": 3.5},
        prices="etc/prices.toml",
        irreversible=("charge", "send_mail"),
        propagate_to=(".example.org",),
        tenants=("acme", "globex"),
        tenant_from="header:x-tenant",
        policy_file="etc/policy.yaml",
        brake_share=50.0,
        brake_runs=10.0,
        brake_window=60.0,
    )


def test_an_empty_variable_counts_as_unset() -> None:
    assert from_environment({"HANGUP_MODE": "", "HANGUP_SETTLE": "  "}) == Settings()


@pytest.mark.parametrize(
    ("variable", "value", "says"),
    [
        ("HANGUP_MODE", "loud", "choose one of off, observe, refuse, enforce"),
        ("HANGUP_TENANT_FROM", "x-tenant", "write header:NAME or baggage:NAME"),
        ("HANGUP_TENANT_FROM", "cookie:a", "write header:NAME or baggage:NAME"),
        ("HANGUP_BRAKE_SHARE", "101", "give a percentage, 0 to 100"),
        ("HANGUP_BUDGET", "-1", "give seconds as a number that is zero or more"),
        ("HANGUP_BUDGET", "nan", "give seconds"),
        ("HANGUP_SETTLE", "soon", "give seconds"),
        ("HANGUP_NEEDS", "inference", "write KIND_OR_MODEL=SECONDS"),
        ("HANGUP_NEEDS", "inference=-2", "give seconds"),
        ("HANGUP_NEEDS", "inference=", "give seconds"),
        ("HANGUP_NEEDS", "inference=2s", "give seconds"),
        ("HANGUP_NEEDS", "gpt-4o=nan", "give seconds"),
        ("HANGUP_NEEDS", "=2", "write KIND_OR_MODEL=SECONDS"),
        ("HANGUP_NEEDS", "inference=2;tool=1", "give seconds"),
        ("HANGUP_NEEDS", "tool=1,tool=2", "each name once"),
    ],
)
def test_a_wrong_variable_is_named_with_its_value_and_the_remedy(
    variable: str, value: str, says: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        from_environment({variable: value})
    assert refused.value.name == variable
    assert says in str(refused.value)
    assert variable in str(refused.value)


@pytest.mark.parametrize(
    ("keyword", "value", "says"),
    [
        ("mode", "loud", "mode='loud' cannot be used: choose one of off, observe"),
        ("mode", 3, "mode=3 cannot be used"),
        ("budget", -0.5, "budget=-0.5 cannot be used: give seconds"),
        ("budget", math.nan, "budget=nan cannot be used: give seconds"),
        ("budget", [], "give seconds"),
        ("needs", {"inference": "long"}, "give seconds"),
        ("needs", {"": 2}, "write KIND_OR_MODEL=SECONDS"),
        ("needs", {7: 2}, "write KIND_OR_MODEL=SECONDS"),
        ("needs", 2, "give a comma-separated text"),
        ("prices", 7, "give the path of a file"),
        ("prices", " ", "give the path of a file"),
        ("prices", b"prices.toml", "give the path of a file"),
        ("tenants", 7, "give a comma-separated text or a list of texts"),
        ("tenants", [7], "give a comma-separated text or a list of texts"),
        ("colour", "red", "no such setting; there are mode, budget, "),
    ],
)
def test_a_wrong_keyword_is_named_with_its_value_and_the_remedy(
    keyword: str, value: Any, says: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        with_keywords(Settings(), **{keyword: value})
    assert says in str(refused.value)


def test_keywords_are_laid_over_and_none_has_no_opinion() -> None:
    base = Settings(budget=10.0, settle=1.0)
    changed = with_keywords(
        base, budget=None, mode=Mode.OBSERVE, tenants=["acme"], needs={"tool": "1"}
    )
    assert changed.budget == 10.0
    assert changed.settle == 1.0
    assert changed.mode is Mode.OBSERVE
    assert changed.tenants == ("acme",)
    assert changed.needs == {"tool": 1.0}
    assert base == Settings(budget=10.0, settle=1.0)


def test_needs_name_models_as_they_are_called() -> None:
    """Fine-tuned and hosted models have colons and slashes."""
    text = "ft:gpt-4o-mini:acme::7=4, openrouter/meta-llama/llama-3.1=2"
    assert from_environment({"HANGUP_NEEDS": text}).needs == {
        "ft:gpt-4o-mini:acme::7": 4.0,
        "openrouter/meta-llama/llama-3.1": 2.0,
    }


def test_the_price_file_may_be_given_as_a_path() -> None:
    settings = with_keywords(Settings(), prices=Path("etc") / "prices.toml")
    assert settings.prices == str(Path("etc") / "prices.toml")


def test_no_text_has_the_mode_of_another() -> None:
    assert config.read_mode("mode", None) is None
    assert config.read_mode("mode", "REFUSE") is Mode.REFUSE
    assert config.read_mode("mode", Mode.OFF) is Mode.OFF


def test_the_environment_is_read_at_first_use_and_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HANGUP_SETTLE", "1")
    first = config.current()
    assert first.settle == 1.0
    monkeypatch.setenv("HANGUP_SETTLE", "2")
    assert config.current() is first
    config.use(None)
    assert config.current().settle == 2.0


def test_use_says_what_was_in_force() -> None:
    mine = Settings(settle=9.0)
    assert config.use(mine) is None
    assert config.current() is mine
    assert config.use(None) is mine


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Settings().settle = 1.0  # type: ignore[misc]


def test_two_sets_of_settings_share_nothing() -> None:
    assert Settings().needs is not Settings().needs


def test_every_setting_says_what_it_does() -> None:
    for spec in dataclasses.fields(Settings):
        doc = spec.metadata["doc"]
        assert doc.endswith("."), spec.name
        assert len(doc) > 20, spec.name
        assert callable(spec.metadata["read"]), spec.name
