"""What can be wrong inside a process: judged by its facts.

Each function yields (where, detail) for what is wrong. Facts that are not there prove
nothing: then it is silent.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

from hangup.otel import names
from hangup.otel.hosts import host_listed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hangup.cli._doctor_evidence import Evidence, Source

    Wrong = Iterator[tuple[str, str]]

# Whose spans show model calls, whatever client they are made with.
_GENAI: Final = ("openai", "anthropic", "genai", "langchain", "llama", "litellm")
_REFUSING: Final = ("refuse", "enforce")


def not_installed(evidence: Evidence) -> Wrong:
    """Judge whether hangup is in any process that was looked at."""
    inside = [one for one in evidence.sources if one.facts is not None]
    if inside and not any(one.has_hangup for one in inside):
        yield inside[0].where, "HangupInstrumentor is not instrumented here"
    for one in evidence.scraped:
        if not one.has_hangup:
            yield one.where, "it answers, and there is no hangup_info in it"


def mode_off(evidence: Evidence) -> Wrong:
    """Judge whether the mode is off."""
    for one in evidence.with_hangup:
        if one.mode == "off":
            yield one.where, "HANGUP_MODE is off"


def _measuring(evidence: Evidence) -> Iterator[Source]:
    for one in evidence.processes:
        if one.mode != "off":
            yield one


def no_sdk(evidence: Evidence) -> Wrong:
    """Judge whether there is an SDK that spans can be read from."""
    for one in _measuring(evidence):
        tracing = one.part("tracing")
        if tracing.get("disabled"):
            yield one.where, "OTEL_SDK_DISABLED is set"
        elif tracing and not tracing["sdk"]:
            yield one.where, f"the tracer provider is {tracing['provider']}"


def provider_unwatched(evidence: Evidence) -> Wrong:
    """Judge whether the process's providers are those that hangup hooked."""
    for one in _measuring(evidence):
        tracing, metering = one.part("tracing"), one.part("metrics")
        if tracing.get("sdk") and not (tracing["watched"] or tracing["disabled"]):
            yield one.where, f"tracer provider {tracing['provider']}"
        if metering and not metering["watched"]:
            yield one.where, f"meter provider {metering['provider']}"


def _hooked(evidence: Evidence) -> Iterator[tuple[Source, dict[str, Any]]]:
    for one in _measuring(evidence):
        tracing = one.part("tracing")
        if tracing.get("watched"):
            yield one, tracing


def sampler(evidence: Evidence) -> Wrong:
    """Judge whether what the sampler drops is measured."""
    for one, tracing in _hooked(evidence):
        if not tracing["sampler_drops"]:
            continue
        if not tracing["sampler_ours"]:
            yield one.where, f"{tracing['sampler']} stands without hangup's around it"
        elif tracing["tracers_past_us"]:
            many = tracing["tracers_past_us"]
            yield one.where, f"{many} tracers ask {tracing['sampler']} past hangup's"


def processor_missing(evidence: Evidence) -> Wrong:
    """Judge whether hangup's processor is in the chain."""
    for one, tracing in _hooked(evidence):
        if not any(part["ours"] for part in tracing["processors"]):
            yield one.where, "HangupSpanProcessor is not among the provider's"


def processor_order(evidence: Evidence) -> Wrong:
    """Judge what stands before hangup's processor."""
    for one, tracing in _hooked(evidence):
        before: list[dict[str, Any]] = []
        for part in tracing["processors"]:
            if part["ours"]:
                break
            before.append(part)
        else:
            continue
        for part in before:
            if part["blocks"]:
                to = ", ".join(_short(name) for name in part["exporters"])
                who = _short(part["name"])
                yield one.where, f"{who} waits for {to or 'its exporter'} at each span"
        if tracing["calls_not_ended"] and before:
            who = ", ".join(_short(part["name"]) for part in before)
            many = tracing["calls_not_ended"]
            yield one.where, f"the ends of {many} calls did not come past {who}"


def processor_concurrent(evidence: Evidence) -> Wrong:
    """Judge whether processors run on threads of their own."""
    for one, tracing in _hooked(evidence):
        if tracing["concurrent"]:
            yield one.where, "the provider has a ConcurrentMultiSpanProcessor"


def exports_unsampled(evidence: Evidence) -> Wrong:
    """Judge whether a processor exports what is only recorded."""
    for one, tracing in _hooked(evidence):
        if not tracing["sampler_drops"]:
            continue
        for part in tracing["processors"]:
            for name in part["exports_unsampled"]:
                yield one.where, name


def no_exporter(evidence: Evidence) -> Wrong:
    """Judge whether the numbers leave the process."""
    for one in _measuring(evidence):
        metering = one.part("metrics")
        if metering and not metering["readers"]:
            yield one.where, f"{_short(metering['provider'])} has no metric reader"


def no_trace_exporter(evidence: Evidence) -> Wrong:
    """Judge whether spans leave the process."""
    for one, tracing in _hooked(evidence):
        if not any(part["exporters"] for part in tracing["processors"]):
            yield one.where, "no span processor has an exporter"


def propagator_replaced(evidence: Evidence) -> Wrong:
    """Judge whether the run leaves with the requests."""
    for one in _measuring(evidence):
        if one.facts is not None and one.facts.get("propagator") is False:
            yield one.where, "the global propagator is not hangup's"


def requests_unwatched(evidence: Evidence) -> Wrong:
    """Judge whether a server's requests are runs."""
    # Who has workers serves through them, and has not loaded the application itself.
    parents = {(one.facts or {}).get("ppid") for one in evidence.processes}
    for one in _measuring(evidence):
        facts = one.facts or {}
        # A server that was only imported serves nobody, nor does a page of metrics.
        ports = set(facts.get("listening") or ()) - set(
            one.part("metrics").get("ports") or ()
        )
        serves = bool(facts.get("servers")) and ports and facts["pid"] not in parents
        if serves and not one.part_flag("middleware") and not one.series(names.RUNS):
            who = " and ".join(facts["servers"])
            yield one.where, f"{who}, and no HangupMiddleware"


def wire_unwatched(evidence: Evidence) -> Wrong:
    """Judge whether the HTTP clients pass hangup's layer."""
    for one in _measuring(evidence):
        for stack, watched in (one.part("clients").get("wire") or {}).items():
            if not watched:
                yield one.where, stack


def httpx2_unspanned(evidence: Evidence) -> Wrong:
    """Judge whether model calls over httpx2 have spans."""
    for one in _measuring(evidence):
        found, seen = one.part("clients"), one.part("seen").get("model_calls") or {}
        if seen.get("bare"):
            yield one.where, f"{seen['bare']} model calls had no span"
            continue
        loaded = found.get("loaded") or ()
        spanned = any(
            "HTTPX2" in name or any(word in name.lower() for word in _GENAI)
            for name in found.get("instrumentors") or ()
        )
        # Not anthropic: its client makes spans itself.
        over = "openai" in loaded and "httpx2" in loaded
        if over and not spanned and not seen.get("span"):
            yield one.where, "openai over httpx2"


def host_denied(evidence: Evidence) -> Wrong:
    """Judge which hosts runs called without telling them."""
    for one in _measuring(evidence):
        hosts = [
            host
            for host in one.part("seen").get("hosts_denied") or ()
            if not host_listed(host, evidence.foreign)
        ]
        for host in hosts:
            yield one.where, host


def bus_unreachable(evidence: Evidence) -> Wrong:
    """Judge whether kills reach the processes."""
    for one in evidence.with_hangup:
        bus = one.part("bus")
        if bus and not bus["up"]:
            yield one.where, f"{bus['where']}: {bus['error']}"
        down = [s for s in one.samples if s.name == names.BUS_UP and not s.value]
        if down and not bus:
            yield one.where, "hangup_bus_up is 0"


def irreversible_unlisted(evidence: Evidence) -> Wrong:
    """Judge which tools would be refused that must not be stopped half-way."""
    for one in _measuring(evidence):
        if one.mode not in _REFUSING and not any(
            one.series(names.RUNS, mode=mode) for mode in _REFUSING
        ):
            continue
        seen = one.part("seen")
        listed = set(one.part("hangup").get("irreversible") or ())
        destructive = set(seen.get("destructive") or ())
        for tool in sorted({*(seen.get("tools") or ()), *destructive} - listed):
            if tool in (seen.get("protected") or ()):
                continue
            if tool in destructive:
                yield one.where, f"{tool}, whose MCP server calls it destructive"
            elif word := _dangerous(tool):
                yield one.where, f"{tool}, which by its name may {word}"


_CANNOT_BE_UNDONE: Final = frozenset(
    (
        *("book", "buy", "cancel", "charge", "checkout", "delete", "deploy", "destroy"),
        *("drop", "email", "mail", "merge", "order", "pay", "post", "publish"),
        *("purchase", "purge", "refund", "remove", "send", "submit", "terminate"),
        *("transfer", "wire", "withdraw"),
    )
)


def _dangerous(tool: str) -> str | None:
    """Return the word of a tool's name that says it cannot be undone."""
    spaced = "".join(f" {c}" if c.isupper() else c for c in tool)
    words = "".join(c if c.isalnum() else " " for c in spaced).lower().split()
    return next((word for word in words[:2] if word in _CANNOT_BE_UNDONE), None)


def prefork_metrics(evidence: Evidence) -> Wrong:
    """Judge whether the numbers of several workers can be told apart."""
    families: dict[int, list[Source]] = defaultdict(list)
    for one in evidence.processes:
        families[(one.facts or {}).get("ppid", 0)].append(one)
    for family in families.values():
        yield from _family(family)
    for one in evidence.scraped:
        for jump in one.jumps:
            yield one.where, jump


def _family(workers: list[Source]) -> Wrong:
    if len(workers) == 1:
        return
    pushing: dict[str | None, list[Source]] = defaultdict(list)
    scraped: list[Source] = []
    for one in workers:
        readers = one.part("metrics").get("readers") or ()
        if any(reader["push"] for reader in readers):
            pushing[(one.facts or {}).get("instance")].append(one)
        if any(r["prometheus"] and not r["all_workers"] for r in readers):
            scraped.append(one)
    for instance, several in pushing.items():
        if len(several) > 1:
            shown = "none" if instance is None else instance
            yield _all(several), f"they export as one service.instance.id ({shown})"
    ports = [tuple(one.part("metrics").get("ports") or ()) for one in scraped]
    if len(scraped) > 1 and ((() in ports) or len(set(ports)) < len(ports)):
        yield (
            _all(scraped),
            "each keeps its own sums, and a scrape reaches one of them or none",
        )


def _all(sources: list[Source]) -> str:
    return ", ".join(one.where for one in sources)


def _short(name: str) -> str:
    return name.rpartition(".")[2]
