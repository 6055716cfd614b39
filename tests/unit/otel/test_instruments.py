"""Every series at zero before its first event, and not too many of them."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry import context as context_api
from opentelemetry.trace import get_current_span
from support.core import spending
from support.telemetry import chat, instrumented, opened, used

from hangup import testing
from hangup.config import Mode
from hangup.core.cause import Cause
from hangup.errors import RunAbandoned
from hangup.otel import calls, names
from hangup.otel.instrumentor import HangupInstrumentor, installed_version
from hangup.otel.instruments import Instruments, fates
from hangup.otel.labels import FewValues, Room
from hangup.spend.fate import Basis, Fate
from hangup.spend.posting import Posting

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer
    from support.telemetry import Series, Telemetry

    from hangup.testing import FakeClock

CAUSES = {cause.value for cause in Cause}


def _instruments() -> Instruments:
    found = HangupInstrumentor()._instruments
    assert found is not None
    return found


def _labels(series: list[Series], *wanted: str) -> set[tuple[Any, ...]]:
    return {tuple(one.labels[label] for label in wanted) for one in series}


# At zero from the start


def test_what_needs_no_run_exists_at_zero_from_the_start(clock: FakeClock) -> None:
    with instrumented(tenants="acme") as telemetry:
        series = telemetry.series()
    assert [one.value for one in series[names.BAGGAGE_LOST]] == [0]
    assert [one.value for one in series[names.OLDEST]] == [0]
    assert _labels(series[names.ACTIVE], names.STATE) == {("running",), ("stopping",)}
    assert _labels(series[names.TENANT_COST], names.TENANT, names.FATE) == {
        (tenant, fate.value) for tenant in ("acme", "other") for fate in Fate
    }
    assert _labels(series[names.ESTIMATED_TOKENS], names.FATE, names.BASIS) == {
        (fate.value, basis) for fate in Fate for basis in ("prorated", "estimated")
    }
    [info] = series.pop(names.INFO)
    assert info.value == 1
    assert info.labels == {
        names.VERSION: installed_version(),
        names.MODE: "unset",
        names.POLICY: "none",
    }
    assert {
        name: one for name, found in series.items() for one in found if one.value
    } == {}


@pytest.mark.parametrize("mode", ["observe", "refuse", "enforce"])
def test_the_series_of_a_run_name_exist_at_zero_from_the_start_of_its_first_run(
    telemetry: Telemetry, clock: FakeClock, mode: str
) -> None:
    with opened(clock, name="research", mode=mode):
        series = telemetry.series()
    for metric in (names.RUNS, names.REFUSALS, names.CALLS, names.CALL_TIME):
        assert {one.value for one in series[metric]} == {0}
    for metric in (names.UNSETTLED, names.SWALLOWED):
        assert [one.labels for one in series[metric]] == [{names.RUN_NAME: "research"}]
    outcomes = {("abandoned", cause) for cause in CAUSES}
    outcomes |= {("delivered", "none"), ("late", "none")}
    assert _labels(
        series[names.RUNS],
        *(names.OUTCOME, names.CAUSE, names.CALLER, names.MODE, names.RUN_NAME),
    ) == {
        (*outcome, caller, mode, "research")
        for outcome in outcomes
        for caller in ("connected", "gone", "unknown")
    }
    assert _labels(
        series[names.REFUSALS], names.CALL_KIND, names.CAUSE, names.DECISION
    ) == {
        (
            kind,
            cause,
            "would_refuse" if mode == "observe" and cause != "killed" else "refuse",
        )
        for kind in calls.KINDS
        for cause in CAUSES
    }
    assert _labels(series[names.CALLS], names.CALL_KIND, names.FATE, names.CAUSE) == {
        (kind, *fate) for kind in (calls.INFERENCE, calls.TOOL) for fate in fates()
    }


def test_the_series_of_a_model_exist_at_zero_from_the_start_of_its_first_call(
    telemetry: Telemetry, tracer: Tracer, clock: FakeClock
) -> None:
    with opened(clock), chat(tracer, model="gpt-4o"):
        series = telemetry.series()
        for metric in (
            *(names.TOKENS, names.COST, names.METERED_TOKENS, names.METERED_COST),
            *(names.UNKNOWN_CALLS, names.UNKNOWN_BOUND, names.UNPRICED),
        ):
            assert {one.value for one in series[metric]} == {0}, metric
            assert _labels(series[metric], names.MODEL) == {("gpt-4o",)}
        found = _labels(series[names.TOKENS], names.FATE, names.CAUSE, names.TOKEN_TYPE)
        assert found == {
            (*fate, kind) for fate in fates() for kind in ("input", "output")
        }


def test_the_series_of_a_rare_kind_exist_at_zero_from_the_start_of_its_first_call(
    telemetry: Telemetry, tracer: Tracer, clock: FakeClock
) -> None:
    with (
        opened(clock),
        tracer.start_as_current_span(
            "search", attributes={"gen_ai.operation.name": "retrieval"}
        ),
    ):
        assert telemetry.series(names.CALLS)[names.CALLS]
        found = _labels(
            telemetry.series(names.CALLS)[names.CALLS], names.CALL_KIND, names.CAUSE
        )
    assert {cause for kind, cause in found if kind == "retrieval"} == {"none", *CAUSES}


def test_seeding_again_never_touches_what_was_counted(
    telemetry: Telemetry, tracer: Tracer, clock: FakeClock
) -> None:
    for _ in range(3):
        with opened(clock), chat(tracer) as span:
            used(span, 1, 2)
    assert telemetry.tokens("delivered") == (3, 6)
    assert telemetry.total(names.RUNS) == 3


# Not too many


def _everything(
    telemetry: Telemetry, clock: FakeClock, name: str, model: str, mode: str
) -> int:
    """Let everything happen that can; return how many series there are."""
    kinds = ("chat", "embeddings", "retrieval", "execute_tool", "invoke_agent")

    def call(kind: str) -> None:
        attributes = {"gen_ai.operation.name": kind, "gen_ai.request.model": model}
        with telemetry.tracer().start_as_current_span(kind, attributes=attributes) as x:
            clock.advance(1)
            used(x, 10, 10)

    def run(cause: Cause) -> None:
        with opened(clock, 1_000, name=name, mode=mode) as run:
            for kind in kinds:
                call(kind)
            run.cancel(cause)
            call("chat")

    for cause in Cause:
        try:
            run(cause)
        except RunAbandoned:
            assert mode != "observe" or cause is Cause.KILLED
    for late in (False, True) if mode == "observe" else (False,):
        with opened(clock, 5, name=name, mode=mode):
            call("chat")
            clock.advance(10 if late else 0)
    return _width(telemetry)


def _width(telemetry: Telemetry) -> int:
    """Count Prometheus series: of a histogram the buckets, the sum and the count."""
    return sum(one.width for found in telemetry.series().values() for one in found)


@pytest.mark.parametrize("mode", ["observe", "enforce"])
def test_one_run_name_and_one_model_make_at_most_600_series(
    telemetry: Telemetry, clock: FakeClock, mode: str
) -> None:
    first = _everything(telemetry, clock, "one", "gpt-4o", mode)
    assert first <= names.SERIES_AT_FIRST <= 600
    again = _everything(telemetry, clock, "one", "gpt-4o", mode)
    assert again == first
    second = _everything(telemetry, clock, "one", "gpt-4o-mini", mode)
    assert second - first == names.SERIES_PER_MODEL
    third = _everything(telemetry, clock, "two", "gpt-4o", mode)
    assert third - second <= names.SERIES_PER_RUN_NAME
    fourth = _everything(telemetry, clock, "two", "gpt-4o-mini", mode)
    assert fourth - third == 54
    if mode == "observe":
        assert first == names.SERIES_AT_FIRST
        assert third - second == names.SERIES_PER_RUN_NAME


def test_a_second_mode_adds_as_many_series_as_documented(
    telemetry: Telemetry, clock: FakeClock
) -> None:
    first = _everything(telemetry, clock, "one", "gpt-4o", "observe")
    second = _everything(telemetry, clock, "one", "gpt-4o", "enforce")
    assert second - first == names.SERIES_PER_MODE


def test_a_tenant_adds_as_many_series_as_documented() -> None:
    widths = []
    for tenants in ("", "acme", "acme,emca"):
        with instrumented(tenants=tenants) as telemetry:
            widths.append(_width(telemetry))
    added = names.SERIES_PER_TENANT
    assert widths == [widths[0], widths[0] + added, widths[0] + 2 * added]


@pytest.mark.parametrize("kinds", [("chat",), ("chat", "execute_tool", "invoke_agent")])
def test_c13_unbounded_labels(
    telemetry: Telemetry, tracer: Tracer, clock: FakeClock, kinds: tuple[str, ...]
) -> None:
    """Ten thousand names stay bounded, and a late first kill is a series of its own."""
    for number in range(10_000):
        with opened(clock, name=f"run {number}") as run:
            if number < 60 or number % 100 == 0:
                for kind in kinds:
                    attributes = {"gen_ai.operation.name": kind}
                    with tracer.start_as_current_span(kind, attributes=attributes) as x:
                        used(x, 1, 1)
    with opened(clock, name="the last", mode="observe") as run, chat(tracer) as span:
        run.cancel("killed")
        clock.advance(1)
        used(span, 0, 500)
    series = telemetry.series()
    assert len(_labels(series[names.RUNS], names.RUN_NAME)) == 51
    killed = {
        one.labels[names.RUN_NAME]: one.value
        for one in series[names.RUNS]
        if one.labels[names.CAUSE] == "killed" and one.value
    }
    assert killed == {"other": 1}
    assert telemetry.tokens("wasted", cause="killed", run="other") == (0, 500)
    # Nothing was folded into the SDK's overflow series, and nothing was lost.
    for metric, found in series.items():
        assert len(found) <= names.MOST_LABEL_SETS, metric
        assert not [one for one in found if "otel.metric.overflow" in one.labels]
    assert telemetry.total(names.RUNS) == 10_001
    most = names.SERIES_AT_FIRST + 50 * names.SERIES_PER_RUN_NAME
    assert _width(telemetry) <= most + names.SERIES_PER_MODE


def test_many_models_in_many_runs_stay_under_the_limit_of_the_sdk(
    telemetry: Telemetry, tracer: Tracer, clock: FakeClock
) -> None:
    for number in range(60):
        with opened(clock, name=f"run {number}"):
            for model in range(number % 7, 40):
                with chat(tracer, model=f"model {model}") as span:
                    used(span, 1, 1)
    series = telemetry.series()
    assert len(_labels(series[names.METERED_TOKENS], names.MODEL)) == 31
    spent = sum(one.value for one in series[names.TOKENS])
    assert spent == sum(one.value for one in series[names.METERED_TOKENS])
    for metric, found in series.items():
        assert len(found) <= names.MOST_LABEL_SETS, metric
        assert not [one for one in found if "otel.metric.overflow" in one.labels]


def test_few_values_stay_admitted_and_later_ones_are_other() -> None:
    few = FewValues(2)
    assert [few(value) for value in "abcab"] == ["a", "b", "other", "a", "b"]
    assert set(few.admitted()) == {"a", "b"}


def test_room_is_given_whole_or_not_at_all_and_never_taken_back() -> None:
    room = Room(names.MOST_LABEL_SETS - 10)
    assert room.has(("a",), 6)
    assert not room.has(("b",), 5)
    assert room.has(("c",), 4)
    assert room.has(("a",), 6)
    assert not room.has(("b",), 5)


def test_the_run_a_label_belongs_to_never_depends_on_other_labels(
    telemetry: Telemetry, tracer: Tracer, clock: FakeClock
) -> None:
    """A run named as a mode or a kind is seeded like any other."""
    for name in ("inference", "enforce"):
        with opened(clock, name=name), chat(tracer):
            pass
    found = telemetry.series()
    for metric in (names.RUNS, names.CALLS, names.TOKENS):
        assert _labels(found[metric], names.RUN_NAME) == {("inference",), ("enforce",)}


# What is observed


def test_runs_are_shown_while_they_run_and_while_they_stop(
    telemetry: Telemetry, clock: FakeClock
) -> None:
    with opened(clock, mode="observe") as first, opened(clock, mode="observe"):
        assert telemetry.total(names.ACTIVE, state="running") == 1
        first.cancel("killed")
        clock.advance(3)
        assert telemetry.total(names.ACTIVE, state="running") == 0
        assert telemetry.total(names.ACTIVE, state="stopping") == 1
        assert telemetry.total(names.OLDEST) == 3
    assert telemetry.total(names.ACTIVE) == 0
    assert telemetry.total(names.OLDEST) == 0


def test_a_latent_run_is_not_shown(telemetry: Telemetry, clock: FakeClock) -> None:
    with opened(clock, latent=True, server=True) as run:
        assert telemetry.total(names.ACTIVE) == 0
        run.begin_spending()
        with spending(run):
            assert telemetry.total(names.ACTIVE) == 1


def test_unpriced_tokens_are_counted_and_are_no_dollars(
    telemetry: Telemetry, tracer: Tracer, clock: FakeClock
) -> None:
    for model, tokens in (("gpt-4o", 1_000), ("nobody-knows-it", 7)):
        with opened(clock), chat(tracer, model=model) as span:
            used(span, tokens, 0)
    assert telemetry.total(names.UNPRICED, model="nobody-knows-it") == 7
    assert telemetry.total(names.UNPRICED) == 7
    assert telemetry.total(names.COST, model="nobody-knows-it") == 0
    dollars = telemetry.total(names.COST, model="gpt-4o", fate="delivered")
    assert dollars == pytest.approx(telemetry.total(names.METERED_COST)) != 0


def test_a_wasted_call_is_recorded_in_the_context_of_its_span(
    telemetry: Telemetry, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    instruments = _instruments()

    def add(amount: float, labels: Any, context: Any = None) -> None:
        if amount:
            seen.append(get_current_span(context).get_span_context())

    monkeypatch.setattr(instruments.tokens, "add", add)
    span = telemetry.tracer().start_span("call")
    span.end()
    where = span.get_span_context()
    for fate in (Fate.SUNK, Fate.WASTED):
        posting = Posting(
            *(fate, "inference", "m", 1, 0, 1, 0.0, Basis.REPORTED, where),
            *("killed", None),
        )
        instruments.post(posting, "run", Mode.ENFORCE, "other")
    assert [one.is_valid for one in seen] == [False, True]
    assert seen[1] == where


def test_collecting_on_two_threads_while_runs_come_and_go_loses_nothing(
    telemetry: Telemetry, tracer: Tracer
) -> None:
    clock = testing.FakeClock()
    done = threading.Event()

    def collect() -> None:
        while not done.is_set():
            telemetry.series()

    def serve() -> None:
        context_api.attach(context_api.Context())
        for _ in range(100):
            with opened(clock), chat(tracer) as span:
                used(span, 1, 1)

    readers = [threading.Thread(target=collect) for _ in range(2)]
    workers = [threading.Thread(target=serve) for _ in range(4)]
    for thread in (*readers, *workers):
        thread.start()
    for thread in workers:
        thread.join()
    done.set()
    for thread in readers:
        thread.join()
    assert telemetry.tokens("delivered") == (400, 400)
    assert telemetry.total(names.RUNS) == 400
