"""``hangup doctor`` on real processes: what is planted is found, and nothing else.

One process, or a few, for each thing that can be wrong, all at once.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.stores import Redis, directory

from hangup.cli import doctor
from hangup.cli._doctor_checks import CHECKS, judge
from hangup.cli._doctor_evidence import Evidence
from hangup.cli._doctor_launch import Command, ask_all
from hangup.demo.model_server import ModelServer
from hangup.otel import diagnosis_bus

if TYPE_CHECKING:
    from hangup.cli._doctor_evidence import Finding

pytestmark = pytest.mark.wide

_SUPPORT = Path(__file__).parents[1] / "support"
_NOT_HERE = "redis://127.0.0.1:1"

PLANTS: dict[str, tuple[str, dict[str, str], set[tuple[str, str]]]] = {
    # what is planted: the program, variables, and what is found: id, and in its detail
    "nothing": ("nothing", {}, set()),
    "a script that ends": ("script", {}, set()),
    "no hangup": ("not_installed", {}, {("not-installed", "")}),
    "mode off": ("nothing", {"HANGUP_MODE": "off"}, {("mode-off", "")}),
    "no SDK": ("no_sdk", {}, {("no-sdk", "ProxyTracerProvider")}),
    "a disabled SDK": (
        "nothing",
        {"OTEL_SDK_DISABLED": "true"},
        {("no-sdk", "OTEL_SDK_DISABLED")},
    ),
    "a late provider": (
        "provider_unwatched",
        {},
        {("provider-unwatched", "meter provider")},
    ),
    "a late sampler": ("sampler", {}, {("sampler", "TraceIdRatioBased{0.1}")}),
    "no processor": ("processor_missing", {}, {("processor-missing", "")}),
    "a slow processor": (
        "processor_order",
        {},
        {("processor-order", "SimpleSpanProcessor")},
    ),
    "a processor that raises": (
        "processor_raises",
        {},
        {("processor-order", "Raises")},
    ),
    "a concurrent processor": (
        "processor_concurrent",
        {},
        {("processor-concurrent", "")},
    ),
    "an exporter of everything": (
        "exports_unsampled",
        {},
        {("exports-unsampled", "SendsAll")},
    ),
    "no exporter": ("no_exporter", {}, {("no-exporter", "MeterProvider")}),
    "no exporter of spans": ("no_trace_exporter", {}, {("no-trace-exporter", "")}),
    "another propagator": ("propagator", {}, {("propagator", "")}),
    "a server alone": ("requests_unwatched", {}, {("requests-unwatched", "uvicorn")}),
    "calls in no run": ("outside_runs", {}, {("outside-runs", "100 %")}),
    "a replaced transport": ("wire_unwatched", {}, {("wire-unwatched", "httpx")}),
    "httpx alone instrumented": (
        "httpx2_spans",
        {},
        {("httpx2-spans", "openai over httpx2")},
    ),
    "streams without usage": (
        "usage_unknown",
        {},
        {("usage-unknown", "delivered tokens are estimates")},
    ),
    "a model without price": ("unpriced", {}, {("unpriced", "of-our-own-make")}),
    "a host that is not listed": (
        "host_denied",
        {},
        {("host-denied", "tools.example.com")},
    ),
    "one instance id": (
        "prefork_pushes",
        {},
        {("prefork-metrics", "one service.instance.id (the-pod)")},
    ),
    "one port for two": (
        "prefork_scraped",
        {},
        {("prefork-metrics", "a scrape reaches one of them")},
    ),
    "no bus": (
        "nothing",
        {"HANGUP_BUS_URL": _NOT_HERE},
        {("bus-unreachable", "127.0.0.1:1: ")},
    ),
    "tools by name": (
        "irreversible",
        {"HANGUP_MODE": "enforce", "HANGUP_IRREVERSIBLE": "charge_card"},
        {("irreversible-unlisted", "send_email")},
    ),
    "tools by hint": (
        "destructive",
        {"HANGUP_MODE": "enforce"},
        {("irreversible-unlisted", "wipe, whose MCP server calls it destructive")},
    ),
    "a bad policy": (
        "nothing",
        {"HANGUP_POLICY_FILE": str(Path(__file__))},
        {("policy-refused", "")},
    ),
    "the brake": ("brake", {}, {("brake-tripped", "")}),
    "heavy baggage": ("baggage", {}, {("baggage-lost", "1 requests")}),
}


# These are started alone, as a user does; the others are forked from one process.
ALONE = (
    *("nothing", "a script that ends", "no hangup", "one instance id"),
    *("httpx alone instrumented",),
)


def word(plant: str) -> str:
    """Write a plant as ``doctored.py`` takes it."""
    program, variables, _ = PLANTS[plant]
    return ",".join((program, *(f"{key}={value}" for key, value in variables.items())))


def command(model: str, *plants: str) -> list[str]:
    return [
        *("env", f"MODEL_URL={model}"),
        *(sys.executable, str(_SUPPORT / "doctored.py"), *map(word, plants)),
    ]


def examine_one(plant: str, model: str) -> dict[str, list[Finding]]:
    sources = doctor._from_command(command(model, plant), [], 0.0)
    return {plant: judge(Evidence(sources))}


def examine_together(plants: list[str], model: str) -> dict[str, list[Finding]]:
    with Command(command(model, *plants)) as running:
        running.come_up(60)
        told = ask_all(running.directory)
        assert running.status is None, running.output
    found = {}
    for plant in plants:
        mine = [one for one in told if one["argv"][1:] == [word(plant)]]
        found[plant] = judge(Evidence(doctor._sources(mine)))
        assert mine, f"{plant} told nothing"
    return found


async def examine_all() -> dict[str, list[Finding]]:
    together = [plant for plant in PLANTS if plant not in ALONE]
    async with ModelServer() as model:
        found = await asyncio.gather(
            asyncio.to_thread(examine_together, together, model.url),
            *(asyncio.to_thread(examine_one, plant, model.url) for plant in ALONE),
        )
    return {plant: findings for each in found for plant, findings in each.items()}


def is_right(wanted: set[tuple[str, str]], found: list[Finding]) -> bool:
    return {one.check for one in found} == {check for check, _ in wanted} and all(
        any(one.check == check and part in one.detail for one in found)
        for check, part in wanted
    )


def test_what_is_planted_is_found_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    found = asyncio.run(examine_all())
    wrong = {
        plant: found[plant]
        for plant, (_, _, wanted) in PLANTS.items()
        if not is_right(wanted, found[plant])
    }
    assert wrong == {}


def test_everything_in_the_table_is_planted() -> None:
    planted = {check for _, _, wanted in PLANTS.values() for check, _ in wanted}
    # Two services it takes to disagree: see test_doctor_services.
    assert planted | {"modes-disagree"} == {check.id for check in CHECKS}


def test_a_bus_that_answers_is_no_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    with directory() as room, Redis(room) as redis:
        monkeypatch.setenv("HANGUP_BUS_URL", f"unix://{redis.socket}")
        told = diagnosis_bus.look()
    assert told == {"where": str(redis.socket), "up": True, "error": None}
