"""The table of everything ``hangup doctor`` can find. The README's is made from it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hangup.cli import _doctor_inside as inside
from hangup.cli import _doctor_numbers as numbers
from hangup.cli._doctor_evidence import Check, Severity

if TYPE_CHECKING:
    from collections.abc import Collection

    from hangup.cli._doctor_evidence import Evidence, Finding

ERROR, WARNING, NOTICE = Severity.ERROR, Severity.WARNING, Severity.NOTICE

CHECKS: Final[tuple[Check, ...]] = (
    Check(
        "not-installed",
        ERROR,
        "hangup is not in the process",
        "Nothing is stopped and nothing is measured.",
        "Run it under `opentelemetry-instrument` with hangup installed beside it, or "
        "call `hangup.instrument()`; look at OTEL_PYTHON_DISABLED_INSTRUMENTATIONS.",
        inside.not_installed,
    ),
    Check(
        "mode-off",
        WARNING,
        "hangup is switched off",
        "Nothing is stopped and nothing is measured.",
        "Set HANGUP_MODE to observe, which measures and never interferes.",
        inside.mode_off,
    ),
    Check(
        "no-sdk",
        ERROR,
        "no OpenTelemetry SDK makes spans here",
        "Runs are stopped, but no call is measured.",
        "Set a TracerProvider of the SDK before `hangup.instrument()`, or install "
        "opentelemetry-distro for `opentelemetry-instrument`; unset OTEL_SDK_DISABLED.",
        inside.no_sdk,
    ),
    Check(
        "provider-unwatched",
        ERROR,
        "the process uses a provider that hangup does not know",
        "It was set after `hangup.instrument()`: its calls are not decided on, or its "
        "numbers go nowhere.",
        "Set the providers first, then call `hangup.instrument()`; or give it "
        "tracer_provider= and meter_provider=.",
        inside.provider_unwatched,
    ),
    Check(
        "sampler",
        ERROR,
        "the sampler drops calls unmeasured",
        "A dropped span tells nobody what its call used: waste is too low by the share "
        "that is not sampled.",
        "Set the sampler before `hangup.instrument()`, which puts its own around it; "
        "do not assign provider.sampler afterwards.",
        inside.sampler,
    ),
    Check(
        "processor-missing",
        ERROR,
        "hangup's span processor was taken out",
        "No call is seen to end, and none is measured.",
        "Do not replace the provider's processors after `hangup.instrument()`.",
        inside.processor_missing,
    ),
    Check(
        "processor-order",
        WARNING,
        "a processor before hangup's holds spans up, or loses them",
        "What it does at the end of a span comes first: an export in that place makes "
        "calls look longer and blocks the application, an exception in it hides the "
        "end of the call from hangup.",
        "Use BatchSpanProcessor instead of SimpleSpanProcessor; call "
        "`hangup.instrument()` before you add processors of your own.",
        inside.processor_order,
    ),
    Check(
        "processor-concurrent",
        WARNING,
        "span processors run on pool threads",
        "They see an empty context there, so what they read from it (baggage, the run) "
        "is missing from spans, and each span waits for threads. hangup decides "
        "outside of them and is not affected.",
        "Make the TracerProvider without active_span_processor=.",
        inside.processor_concurrent,
    ),
    Check(
        "exports-unsampled",
        ERROR,
        "a processor exports spans that were not sampled",
        "hangup has dropped calls recorded, so that they can be measured. This "
        "processor does not look at the sampled flag and sends them all: you pay for "
        "traces that you meant to drop.",
        "Let its on_end return where `not span.context.trace_flags.sampled`, or "
        "subclass BatchSpanProcessor and call `super().on_end(span)`.",
        inside.exports_unsampled,
    ),
    Check(
        "no-exporter",
        ERROR,
        "the numbers do not leave the process",
        "Everything is measured, and nobody sees it.",
        "Set OTEL_METRICS_EXPORTER (otlp, prometheus) and install hangup[otlp] or "
        "hangup[prometheus]; in code give the MeterProvider a reader.",
        inside.no_exporter,
    ),
    Check(
        "no-trace-exporter",
        NOTICE,
        "spans do not leave the process",
        "Metrics are complete, but no trace shows which run was abandoned.",
        "Set OTEL_TRACES_EXPORTER, or add a BatchSpanProcessor.",
        inside.no_trace_exporter,
    ),
    Check(
        "propagator",
        ERROR,
        "another propagator took hangup's place",
        "Requests leave without deadline and token, and agents in other processes go "
        "on when their caller is gone.",
        "Call `set_global_textmap` before `hangup.instrument()`.",
        inside.propagator_replaced,
    ),
    Check(
        "requests-unwatched",
        ERROR,
        "a server's requests are not runs",
        "Nobody notices that a client left, so nothing is stopped and no waste is "
        "counted.",
        "Wrap the application: `app = HangupMiddleware(app)` from hangup.servers.asgi "
        "or .wsgi, `setup(app)` from hangup.servers.aiohttp.",
        inside.requests_unwatched,
    ),
    Check(
        "outside-runs",
        WARNING,
        "model calls belong to no run",
        "They are metered, but have no fate: they are in no waste and are never "
        "stopped.",
        "Wrap the server's application, and open `hangup.run()` in workers and "
        "scripts.",
        numbers.outside_runs,
    ),
    Check(
        "wire-unwatched",
        ERROR,
        "requests of an HTTP client pass hangup by",
        "Retries of a model client are not refused, streams are neither metered nor "
        "closed, and own services are not told.",
        "Somebody replaced HTTPTransport.handle_request: wrap beside it, not over it; "
        "or give the client `transport=hangup.clients.transport.wrap(...)`.",
        inside.wire_unwatched,
    ),
    Check(
        "httpx2-spans",
        WARNING,
        "model calls over httpx2 have no span",
        "openai 3 and anthropic 2 use httpx2, which an instrumentation of httpx does "
        "not cover. Calls are refused and metered on the wire all the same, but no "
        "trace shows them.",
        "Install opentelemetry-instrumentation-genai-openai (or your library's), or "
        "opentelemetry-instrumentation-httpx 0.66b2 and HTTPX2ClientInstrumentor.",
        inside.httpx2_unspanned,
    ),
    Check(
        "usage-unknown",
        WARNING,
        "answers do not say what they used",
        "A stream without usage is estimated from its text, a call that was cut before "
        "its answer is unknown: the numbers rest on less than they could.",
        'Ask for it: `stream_options={"include_usage": True}` with OpenAI\'s chat '
        "completions; prefer streams where users leave.",
        numbers.usage_unknown,
    ),
    Check(
        "unpriced",
        NOTICE,
        "models have no price",
        "Their tokens are counted, and are in no dollar.",
        "Install hangup[pricing], or name a file with your prices in HANGUP_PRICES.",
        numbers.unpriced,
    ),
    Check(
        "host-denied",
        WARNING,
        "runs call hosts that are told neither deadline nor token",
        "What such a host does for a run goes on when the run is over. For a "
        "stranger's API that is right, for a service of your own it is waste.",
        "Name your own in HANGUP_PROPAGATE_TO; tell the doctor of others with "
        "--foreign.",
        inside.host_denied,
    ),
    Check(
        "prefork-metrics",
        ERROR,
        "several workers report as one",
        "Their counters alternate, every change looks like a reset, and rates are "
        "invented.",
        "Set OTEL_METRICS_EXPORTER=hangup_workers, which answers for all of them, or "
        "export by OTLP and do not set service.instance.id in "
        "OTEL_RESOURCE_ATTRIBUTES.",
        inside.prefork_metrics,
    ),
    Check(
        "bus-unreachable",
        ERROR,
        "the bus does not answer",
        "A kill does not reach this process; work goes on under its local deadline.",
        "Start Redis or Valkey, or correct HANGUP_BUS_URL; look at firewalls.",
        inside.bus_unreachable,
    ),
    Check(
        "modes-disagree",
        WARNING,
        "services go differently far",
        "On a run that crosses them the least intrusive mode wins: where one observes, "
        "the others enforce nothing for its callers.",
        "Set HANGUP_MODE alike everywhere, and deploy one policy file to all.",
        numbers.modes_disagree,
    ),
    Check(
        "irreversible-unlisted",
        ERROR,
        "tools that cannot be undone may be refused or cut",
        "Under enforce every tool call of an abandoned run is refused, and stopped in "
        "flight, unless it is named.",
        "Name them in HANGUP_IRREVERSIBLE, or wrap them in `hangup.irreversible`.",
        inside.irreversible_unlisted,
    ),
    Check(
        "policy-refused",
        ERROR,
        "the policy file cannot be used",
        "The last good one stays in force, or everything is observed.",
        "Run `hangup policy check FILE`.",
        numbers.policy_refused,
    ),
    Check(
        "brake-tripped",
        ERROR,
        "the brake holds",
        "The process only observes since.",
        "Look at budgets and at deadlines that come in; then change the policy file or "
        "call `hangup.release_brake()`.",
        numbers.brake_tripped,
    ),
    Check(
        "baggage-lost",
        WARNING,
        "requests lost baggage",
        "It was over the W3C limits; hangup's own entries went first.",
        "Put less into baggage.",
        numbers.baggage_lost,
    ),
)


def judge(evidence: Evidence, ignored: Collection[str] = ()) -> list[Finding]:
    """Return what is wrong: what is worst first, then in the order of the table.

    Args:
        evidence: What was looked at.
        ignored: Ids of checks that the user knows about.
    """
    return [
        finding
        for check in sorted(CHECKS, key=lambda one: list(Severity).index(one.severity))
        if check.id not in ignored
        for finding in check.findings(evidence)
    ]


def check_of(finding: Finding) -> Check:
    """Return the row of the table that a finding is of."""
    return next(check for check in CHECKS if check.id == finding.check)


def table() -> str:
    """Render the table for the README."""
    rows = ["| finding | what it means | how it is mended |", "|---|---|---|"]
    for one in CHECKS:
        what = f"{one.what[0].upper()}{one.what[1:]}. {one.why}"
        rows.append(f"| `{one.id}` ({one.severity}) | {what} | {one.mend} |")
    return "\n".join(rows)
