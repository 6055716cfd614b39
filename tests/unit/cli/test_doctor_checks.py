"""The doctor's checks: each finds its own thing in planted facts, and only that."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest

from hangup.cli._doctor_checks import CHECKS, judge, table
from hangup.cli._doctor_evidence import Evidence, Sample, Source
from hangup.otel import names

README = Path(__file__).parents[3] / "README.md"

SOUND: dict[str, Any] = {
    "pid": 10,
    "ppid": 1,
    "instance": "a",
    "argv": ["app.py"],
    "hangup": {"installed": True, "mode": "enforce", "irreversible": ["charge"]},
    "tracing": {
        "provider": "opentelemetry.sdk.trace.TracerProvider",
        "sdk": True,
        "disabled": False,
        "watched": True,
        "sampler": "TraceIdRatioBased{0.1}",
        "sampler_drops": True,
        "sampler_ours": True,
        "tracers_past_us": 0,
        "concurrent": False,
        "processors": [
            {
                "name": "opentelemetry.sdk.trace.export.BatchSpanProcessor",
                "ours": False,
                "blocks": False,
                "exporters": ["x.Exporter"],
                "exports_unsampled": [],
            },
            {
                "name": "hangup.otel.processor.HangupSpanProcessor",
                "ours": True,
                "blocks": False,
                "exporters": [],
                "exports_unsampled": [],
            },
        ],
        "calls_not_ended": 0,
    },
    "metrics": {
        "provider": "opentelemetry.sdk.metrics.MeterProvider",
        "watched": True,
        "readers": [
            {"name": "r", "push": True, "prometheus": False, "all_workers": False}
        ],
        "ports": [],
    },
    "propagator": True,
    "clients": {
        "loaded": ["openai", "httpx2"],
        "wire": {"httpx2": True},
        "instrumentors": ["opentelemetry.instrumentation.genai.openai.OpenAI"],
    },
    "servers": ["uvicorn"],
    "listening": [8000],
    "middleware": True,
    "seen": {
        "hosts_denied": [],
        "tools": {"search": 3, "charge": 1},
        "protected": ["charge"],
        "destructive": [],
        "model_calls": {"span": 4},
    },
    "bus": {"where": "127.0.0.1:6379", "up": True, "error": None},
}


def sample(name: str, value: float = 1.0, **labels: str) -> Sample:
    named = {getattr(names, key.upper()): text for key, text in labels.items()}
    return Sample(name, named, value)


NUMBERS = (
    sample(names.INFO, mode="enforce", policy="none"),
    sample(names.METERED_TOKENS, 1000.0, in_run="True"),
    sample(names.TOKENS, 1000.0, fate="delivered"),
    sample(names.CALLS, 100.0, call_kind="inference"),
    sample(names.UNKNOWN_CALLS, 4.0, model="m"),
    sample(names.BUS_UP, 1.0),
)


def source(where: str = "app (10)", /, *more: Sample, **changes: Any) -> Source:
    """Make the facts of a sound process, with changes by dotted path."""
    facts = copy.deepcopy(SOUND)
    for path, value in changes.items():
        here = facts
        *parents, last = path.split("__")
        for key in parents:
            here = here[key]
        here[last] = value
    return Source(where, facts, [*NUMBERS, *more])


def found(*sources: Source, foreign: tuple[str, ...] = ()) -> list[tuple[str, str]]:
    findings = judge(Evidence(list(sources), foreign))
    return [(one.check, one.detail) for one in findings]


def processor(name: str, **changes: Any) -> list[dict[str, Any]]:
    first, ours = copy.deepcopy(SOUND["tracing"]["processors"])
    return [{**first, "name": name, **changes}, ours]


def test_nothing_is_wrong_with_a_sound_process() -> None:
    assert found(source()) == []


PLANTED: dict[str, tuple[dict[str, Any], tuple[Sample, ...], str]] = {
    "not-installed": ({"hangup__installed": False}, (), "not instrumented"),
    "no-sdk": ({"tracing__sdk": False}, (), "TracerProvider"),
    "provider-unwatched": ({"tracing__watched": False}, (), "tracer provider"),
    "sampler": ({"tracing__sampler_ours": False}, (), "TraceIdRatioBased{0.1}"),
    "processor-missing": (
        {"tracing__processors": SOUND["tracing"]["processors"][:1]},
        (),
        "HangupSpanProcessor",
    ),
    "processor-order": (
        {"tracing__processors": processor("x.Simple", blocks=True)},
        (),
        "Simple waits for Exporter",
    ),
    "processor-concurrent": ({"tracing__concurrent": True}, (), "Concurrent"),
    "exports-unsampled": (
        {"tracing__processors": processor("x.All", exports_unsampled=["x.All"])},
        (),
        "x.All",
    ),
    "no-exporter": ({"metrics__readers": []}, (), "MeterProvider"),
    "no-trace-exporter": (
        {"tracing__processors": processor("x.None", exporters=[])},
        (),
        "no span processor",
    ),
    "propagator": ({"propagator": False}, (), "propagator"),
    "requests-unwatched": ({"middleware": False}, (), "uvicorn"),
    "outside-runs": (
        {},
        (sample(names.METERED_TOKENS, 500.0, in_run="False"),),
        "33 %",
    ),
    "wire-unwatched": ({"clients__wire": {"httpx2": False}}, (), "httpx2"),
    "httpx2-spans": (
        {"clients__instrumentors": [], "seen__model_calls": {}},
        (),
        "openai over httpx2",
    ),
    "usage-unknown": (
        {},
        (sample(names.ESTIMATED_TOKENS, 200.0, fate="delivered"),),
        "200 delivered tokens",
    ),
    "unpriced": ({}, (sample(names.UNPRICED, 10.0, model="ours"),), "ours"),
    "host-denied": ({"seen__hosts_denied": ["api.shop.com"]}, (), "api.shop.com"),
    "bus-unreachable": (
        {"bus": {"where": "redis:6379", "up": False, "error": "refused"}},
        (),
        "redis:6379: refused",
    ),
    "irreversible-unlisted": (
        {"seen__tools": {"sendEmail": 1}},
        (),
        "sendEmail, which by its name may send",
    ),
    "policy-refused": ({}, (sample(names.POLICY_ERRORS),), "1 contents"),
    "brake-tripped": ({}, (sample(names.BRAKE_TRIPPED),), "too many runs"),
    "baggage-lost": ({}, (sample(names.BAGGAGE_LOST, 3.0),), "3 requests"),
}


@pytest.mark.parametrize("check", PLANTED)
def test_each_check_finds_its_own_thing_and_no_other_does(check: str) -> None:
    changes, numbers, detail = PLANTED[check]
    [(name, said)] = found(source("app (10)", *numbers, **changes))
    assert name == check
    assert detail in said


def test_every_check_is_tested() -> None:
    apart = {"mode-off", "prefork-metrics", "modes-disagree"}
    assert set(PLANTED) | apart == {check.id for check in CHECKS}
    assert len({check.id for check in CHECKS}) == len(CHECKS)


def test_what_is_switched_off_is_one_finding() -> None:
    one = source(hangup__mode="off", tracing__watched=False, middleware=False)
    one.samples = []
    assert found(one) == [("mode-off", "HANGUP_MODE is off")]


def test_a_sampler_that_drops_nothing_needs_nothing_around_it() -> None:
    changes: dict[str, Any] = {
        "tracing__sampler_ours": False,
        "tracing__sampler_drops": False,
    }
    assert found(source(**changes)) == []


def test_tracers_made_before_ask_past_our_sampler() -> None:
    [(check, said)] = found(source(tracing__tracers_past_us=2))
    assert (check, said[:9]) == ("sampler", "2 tracers")


def test_a_processor_that_hides_ends_is_named_where_calls_show_it() -> None:
    processors = processor("x.Raises")
    changes: dict[str, Any] = {
        "tracing__processors": processors,
        "tracing__calls_not_ended": 2,
    }
    assert found(source(**changes)) == [
        ("processor-order", "the ends of 2 calls did not come past Raises")
    ]
    # Behind ours it cannot have been it.
    changes["tracing__processors"] = processors[::-1]
    assert found(source(**changes)) == []


def test_model_calls_that_had_spans_need_no_instrumentation_by_name() -> None:
    assert found(source(clients__instrumentors=[])) == []
    [(check, said)] = found(source(seen__model_calls={"span": 1, "bare": 2}))
    assert (check, said) == ("httpx2-spans", "2 model calls had no span")


def test_anthropic_makes_its_spans_itself() -> None:
    changes: dict[str, Any] = {"clients__instrumentors": [], "seen__model_calls": {}}
    assert found(source(clients__loaded=["anthropic", "httpx2"], **changes)) == []


def test_a_server_that_was_only_imported_serves_nobody() -> None:
    assert found(source(middleware=False, listening=[])) == []
    scraped: dict[str, Any] = {"listening": [9464], "metrics__ports": [9464]}
    assert found(source(middleware=False, **scraped)) == []


def test_who_has_workers_need_not_have_loaded_the_application() -> None:
    master = source("master (10)", middleware=False)
    worker = source("worker (11)", pid=11, ppid=10, instance="b")
    assert found(master, worker) == []


def test_hosts_of_strangers_are_no_finding() -> None:
    one = source(seen__hosts_denied=["api.shop.com", "tools.example.com"])
    assert found(one, foreign=(".shop.com",)) == [("host-denied", "tools.example.com")]


@pytest.mark.parametrize(
    ("tool", "dangerous"),
    [
        ("send_email", True),
        ("delete-file", True),
        ("PayInvoice", True),
        ("email_search", True),
        ("search_orders", False),
        ("get_weather", False),
        ("summarise", False),
        ("blackmail_detector", False),
    ],
)
def test_tools_are_told_by_the_first_words_of_their_names(
    tool: str, *, dangerous: bool
) -> None:
    assert bool(found(source(seen__tools={tool: 1}))) is dangerous


def test_tools_matter_only_where_something_is_refused() -> None:
    tools: dict[str, Any] = {
        "seen__tools": {"send_email": 1},
        "seen__destructive": ["wipe"],
    }
    observing = source(hangup__mode="observe", **tools)
    observing.samples = [sample(names.INFO, mode="observe", policy="none")]
    assert found(observing) == []
    observing.samples.append(sample(names.RUNS, mode="enforce"))
    assert [check for check, _ in found(observing)] == ["irreversible-unlisted"] * 2


def test_few_unknown_calls_are_how_agents_are() -> None:
    assert found(source("app", sample(names.UNKNOWN_CALLS, 1.0, model="m"))) == []
    [(check, said)] = found(source("app", sample(names.UNKNOWN_CALLS, 2.0, model="n")))
    assert (check, said) == ("usage-unknown", "6 calls of m, n in no token count")


def workers(**changes: Any) -> list[Source]:
    return [
        source(f"worker ({pid})", pid=pid, ppid=9, instance=f"i{pid}", **changes)
        for pid in (21, 22)
    ]


def reader(**changes: bool) -> list[dict[str, Any]]:
    none = {"push": False, "prometheus": False, "all_workers": False}
    return [{"name": "r", **none, **changes}]


def test_workers_with_an_identity_each_are_right() -> None:
    assert found(*workers()) == []


def test_workers_that_export_under_one_identity_are_found() -> None:
    pids = range(21, 28)
    one = [source(f"worker ({pid})", pid=pid, ppid=20, instance="i21") for pid in pids]
    [finding] = judge(Evidence(one))
    assert finding.check == "prefork-metrics"
    assert finding.where == ", ".join(f"worker ({pid})" for pid in pids)
    assert "one service.instance.id (i21)" in finding.detail


def test_workers_are_scraped_one_by_one_or_all_at_once() -> None:
    one_each = reader(prometheus=True)
    assert found(*workers(metrics__readers=one_each)) == [
        (
            "prefork-metrics",
            "each keeps its own sums, and a scrape reaches one of them or none",
        )
    ]
    first, second = workers(metrics__readers=one_each)
    for number, one in enumerate((first, second)):
        one.part("metrics")["ports"] = [9464 + number]
    assert found(first, second) == []
    assert (
        found(*workers(metrics__readers=reader(prometheus=True, all_workers=True)))
        == []
    )


def test_modes_and_policies_that_differ_between_services_are_found() -> None:
    front, back = source("front"), source("back", pid=11, instance="b")
    back.samples = [sample(names.INFO, mode="observe", policy="cafe")]
    assert found(front, back) == [
        ("modes-disagree", "mode enforce at front; mode observe at back"),
        ("modes-disagree", "policy cafe at back; policy none at front"),
    ]


def test_one_thing_in_many_processes_is_one_finding() -> None:
    [finding] = judge(Evidence(workers(propagator=False)))
    assert finding.where == "worker (21), worker (22)"


def test_what_is_known_can_be_ignored() -> None:
    evidence = Evidence([source(propagator=False)])
    assert judge(evidence, ["propagator"]) == []


def test_facts_that_are_missing_prove_nothing() -> None:
    bare = Source("old (3)", {"pid": 3, "ppid": 1, "hangup": {"installed": True}})
    assert found(bare) == []


def test_every_row_says_what_why_and_how() -> None:
    for check in CHECKS:
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", check.id)
        for text in (check.why, check.mend):
            assert text.endswith("."), check.id
        assert not check.what.endswith("."), check.id


def test_the_readme_table_is_the_one_the_code_makes() -> None:
    """``python -c 'from hangup.cli._doctor_checks import table; print(table())'``."""
    _, section = README.read_text().split("<!-- doctor: ")
    written = section.partition("\n")[2].partition("<!-- /doctor -->")[0]
    assert written.strip() == table()
