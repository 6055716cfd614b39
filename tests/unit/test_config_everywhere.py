"""Every setting can be given as a variable, in YAML, and as a keyword, alike."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import yaml

from hangup import config
from hangup.config import Settings

# The text of a variable, and the value in a file of OpenTelemetry's declarative kind.
GIVEN = {
    "mode": ("off", "off"),  # which YAML takes for false
    "budget": ("30", "30"),
    "max_budget": ("60", "60"),
    "budget_header": ("x-left", "x-left"),
    "on_disconnect": ("grace", "grace"),
    "grace": ("2.5", "2.5"),
    "settle": ("1", "1"),
    "refuse_for": ("9", "9"),
    "hold": ("0.5", "0.5"),
    "needs": ("inference=2,gpt-4o=3", "{inference: 2, gpt-4o: 3}"),
    "prices": ("/etc/prices.toml", "/etc/prices.toml"),
    "irreversible": ("charge,send", "[charge, send]"),
    "propagate_to": (".acme.example", "[.acme.example]"),
    "stops_on_close": ("api.acme.example", "[api.acme.example]"),
    "tenants": ("acme,beta", "[acme, beta]"),
    "tenant_from": ("header:X-Tenant", "header:X-Tenant"),
    "frameworks": ("fastapi,quart", "[fastapi, quart]"),
    "policy_file": ("/etc/policy.yaml", "/etc/policy.yaml"),
    "brake_share": ("30%", "30"),
    "brake_runs": ("10", "10"),
    "brake_window": ("60", "60"),
    "workers_dir": ("/run/app", "/run/app"),
    "bus_url": ("redis://bus", "redis://bus"),
}


def test_every_setting_is_tried() -> None:
    assert set(GIVEN) == {spec.name for spec in dataclasses.fields(Settings)}


@pytest.mark.parametrize("name", GIVEN)
def test_variable_file_and_keyword_mean_the_same(name: str) -> None:
    text, in_file = GIVEN[name]
    by_variable = config.from_environment({f"HANGUP_{name.upper()}": text})
    in_yaml: dict[str, Any] = yaml.safe_load(f"{name}: {in_file}")
    by_file = config.with_keywords(Settings(), **in_yaml)
    value: Any = getattr(by_variable, name)
    by_keyword = config.with_keywords(Settings(), **{name: value})
    assert value != getattr(Settings(), name)
    assert by_variable == by_file == by_keyword
