"""From reports to books: what each call used, once, whoever reported it.

The innermost reporter of a model call wins, and nothing is more inner than the wire.
Where the wire allows only an estimate a span's report goes first. What encloses other
calls (agents, tools) counts only what those did not. So a call is entered after all
that stand in it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hangup.otel import calls, names
from hangup.otel.call import MODEL_CALLS, Call, Exchange, same_above
from hangup.otel.prices import provider_of
from hangup.spend.fate import Basis, Metering
from hangup.spend.pricing import Cost, add_usd
from hangup.spend.profile import metering_of
from hangup.spend.rates import Rates
from hangup.spend.reported import billed, calculated
from hangup.spend.usage import Usage, read_aggregate, read_first_token, read_usage

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from hangup.otel.instruments import Instruments
    from hangup.spend.pricer import Pricer


_NOTHING = Usage(0, 0)


class Booking:
    """Enters ended calls into the metered totals and the ledgers.

    Called by one thread at a time.

    Args:
        instruments: Where totals, and what is unknown, are recorded.
        pricer: Says what a call cost.
    """

    def __init__(self, instruments: Instruments, pricer: Pricer) -> None:
        self._instruments = instruments
        self._pricer = pricer
        self._rates = Rates()

    def enter(self, call: Call) -> None:
        """Enter a call that has ended, after all that stand in it."""
        if isinstance(call, Exchange):
            self._enter_exchange(call)
        else:
            self._enter_span(call)

    def enter_estimates(self, call: Call) -> None:
        """Enter what the wire told of a call whose span tells nothing any more."""
        estimates, call.estimates = call.estimates, None
        for exchange in estimates or ():
            self._book_exchange(exchange)

    def _enter_exchange(self, exchange: Exchange) -> None:
        above = same_above(exchange)
        if exchange.free:
            if above is not None:
                above.failed += 1
            elif exchange.sent:  # else it was no call
                self._post(exchange, self._model(exchange), None)
            return
        meter = exchange.meter
        reported = (
            exchange.usage is not None
            and meter.input_basis is Basis.REPORTED
            and meter.output_basis is Basis.REPORTED
        )
        if exchange.outcome_unknown:
            self._note_outcome_unknown(exchange)
        elif exchange.cut:
            model = self._model(exchange)
            self._instruments.avoided.cut(exchange, model)
        if reported or above is None:
            self._book_exchange(exchange)
        elif above.estimates is None:
            above.estimates = [exchange]
        else:
            above.estimates.append(exchange)

    def _enter_span(self, call: Call) -> None:
        report = call.report
        attributes = {} if report is None else _plain(report.attributes)
        # The usual call is a model's, and nothing stands in it or around it: what only
        # others need is asked for by them alone. Every frame here is one per cent.
        of_model = call.kind in MODEL_CALLS
        said = read_usage(attributes) if of_model else _said(attributes)
        usage = said
        if said is not None and (call.counted is not None or not of_model):
            usage = _own(call, said)
        above = None if call.parent is None else same_above(call)
        model = call.model or calls.model_of(attributes) or calls.UNKNOWN_MODEL
        estimates = call.estimates or ()
        if call.duplicate:
            self.enter_estimates(call)
            self._note_vague(call, model, attributes)
            return
        if complete(call.kind, usage) and not (estimates and _outrun(usage, estimates)):
            metering = None
            if len(estimates) == 1:
                metering = _fitted(estimates[0], usage)
            first = read_first_token(attributes)
            self._book(call, model, usage, first, metering, attributes)
            return
        if above is not None and (estimates or usage is None):
            # Whether anybody knows more is seen when the outermost one has ended: a
            # retry in between may have said nothing while another one said all.
            above.estimates = [*(above.estimates or ()), *estimates] or None
            above.failed += call.failed
            if not estimates and not call.failed:
                above.vague += max(1, call.vague)
            return
        if estimates:
            self.enter_estimates(call)
            return
        if of_model and usage is None and said is not None:
            return  # all of it was counted further in: no call of its own
        first = read_first_token(attributes)
        self._book(call, model, usage, first, None, attributes)
        if of_model and not (usage is None and call.failed):
            self._note_unknown(max(1, call.vague), model, _bound_of(attributes))

    def _book_exchange(self, exchange: Exchange) -> None:
        meter, usage = exchange.meter, exchange.usage
        model = self._model(exchange)
        started = exchange.started_at
        first, took = meter.first_token_at, exchange.ended_at - started
        if first is not None:
            since: float | None = first - started
            if exchange.complete:
                self._rates.learn(model, meter)
        else:
            output = 0 if usage is None else usage.output or 0
            since = self._rates.began(model, output, took)
        metering = metering_of(meter) if exchange.legible else None
        self._book(exchange, model, usage, since, metering, {})
        if not complete(exchange.kind, usage):
            self._note_unknown(1, model, None)

    def _book(  # noqa: PLR0913, PLR0917  what is known of a call at its end
        self,
        call: Call,
        model: str,
        usage: Usage | None,
        first_token: float | None,
        metering: Metering | None,
        attributes: Mapping[str, object],
    ) -> None:
        cost = self._cost(call, model, usage, attributes)
        if usage is not None and call.parent is not None:
            _tell_those_around(call, usage)
        if usage is not None or cost is not None:
            self._instruments.metered.add(
                model,
                _NOTHING if usage is None else usage,
                None if cost is None else cost.total,
                in_run=call.run is not None,
            )
        if usage is not None and call.kind in MODEL_CALLS and _is_whole(call):
            self._instruments.avoided.record(model, call.kind, usage, cost)
        self._post(call, model, usage, first_token, cost, metering)

    def _cost(
        self,
        call: Call,
        model: str,
        usage: Usage | None,
        attributes: Mapping[str, object],
    ) -> Cost | None:
        """Return what a call cost: its tokens, and a tool its own price."""
        cost = None
        if usage is not None:
            known = calculated(attributes) if call.kind in MODEL_CALLS else None
            provider, bill, batch = provider_of(attributes), None, False
            if isinstance(call, Exchange):
                provider, bill = call.provider, call.billed
                said = call.meter.raw_usage
                if said is not None:
                    told = billed(said)
                    bill = bill if told is None else told
                    batch = said.get("service_tier") == "batch"
            cost = self._pricer.cost(
                model,
                usage,
                provider=provider,
                reported=bill,
                calculated=known,
                batch=batch,
            )
        if call.kind != calls.TOOL:
            return cost
        own = self._pricer.tool(calls.tool_of(attributes) or "", _seconds(call))
        if own is None or cost is None:
            return own or cost
        return Cost(add_usd(own.input, cost.input), add_usd(own.output, cost.output))

    @staticmethod
    def _post(  # noqa: PLR0913, PLR0917  what the ledger wants to know
        call: Call,
        model: str,
        usage: Usage | None,
        first_token: float | None = None,
        cost: Cost | None = None,
        metering: Metering | None = None,
    ) -> None:
        ledger = None if call.run is None else call.run.ledger
        if ledger is None:
            return
        started = call.started_at
        first = None if first_token is None else started + first_token
        what, when = (call.kind, model), (started, first, call.ended_at)
        ledger.enter((*what, *when, usage, cost, call.span_context, metering))

    @staticmethod
    def _model(exchange: Exchange) -> str:
        meter, above = exchange.meter, exchange.parent
        model = meter.request_model or meter.response_model
        if model is None and above is not None:
            model = above.model
        return model or calls.UNKNOWN_MODEL

    def _note_vague(
        self, call: Call, model: str, attributes: Mapping[str, object]
    ) -> None:
        if call.vague and call.kind in MODEL_CALLS:
            self._note_unknown(call.vague, model, _bound_of(attributes))

    def _note_unknown(self, count: int, model: str, bound: int | None) -> None:
        """Count model calls whose usage, or a part of it, nobody reported."""
        labels = {names.MODEL: self._instruments.models(model)}
        self._instruments.unknown.add(count, labels)
        if bound is not None:
            self._instruments.unknown_bound.add(bound * count, labels)

    def _note_outcome_unknown(self, exchange: Exchange) -> None:
        """Count a call whose provider may have gone on after it was cut."""
        model = self._model(exchange)
        labels = {names.MODEL: self._instruments.models(model)}
        self._instruments.outcome_unknown.add(1, labels)
        bound = exchange.meter.unknown_bound
        if bound:
            self._instruments.unknown_bound.add(bound, labels)


def _is_whole(call: Call) -> bool:
    """Whether a model call ran to its end and said what it used itself."""
    if not isinstance(call, Exchange):
        return not call.estimates
    meter = call.meter
    known = (meter.input_basis, meter.output_basis)
    return not (call.cut or call.halted) and known == (Basis.REPORTED, Basis.REPORTED)


def complete(kind: str, usage: Usage | None) -> bool:
    """Whether the usage says all there is; embeddings put nothing out."""
    if kind not in MODEL_CALLS:
        return usage is not None
    if usage is None or usage.input is None:
        return False
    return usage.output is not None or kind == calls.EMBEDDINGS


def _said(attributes: Mapping[str, object]) -> Usage | None:
    """Return the usage that the span of an agent or a tool reports, if it does."""
    return read_aggregate(attributes) or read_usage(attributes)


def _own(call: Call, said: Usage) -> Usage | None:
    """Return what of it was not counted further in; None for nothing.

    Agents and tools report sums over what stands in them. A model call does not: only
    where it repeats exactly what was counted (a framework's model span around an agent)
    is it no call of its own.
    """
    counted = call.counted
    if call.kind in MODEL_CALLS:
        repeats = counted is not None and (
            (said.input, said.output) == (counted.input, counted.output)
        )
        return None if repeats else said
    own = said if counted is None else said.beyond(counted)
    return own if own.total else None


def _outrun(usage: Usage | None, estimates: Sequence[Exchange]) -> bool:
    """Whether more had come on the wire, when it was cut, than a span reports.

    Anthropic names an output in ``message_start`` that is only a placeholder, and some
    instrumentations report it where the stream was cut.
    """
    if usage is None or usage.output is None:
        return False
    cut = [one.usage for one in estimates if one.outcome_unknown]
    return sum(one.output or 0 for one in cut if one is not None) > usage.output


def _tell_those_around(call: Call, usage: Usage) -> None:
    """Tell every call around that this much has been counted."""
    same = same_above(call)
    while same is not None:
        same.duplicate = True
        same = same_above(same)
    above = call.parent
    while above is not None:
        above.counted = usage if above.counted is None else above.counted + usage
        above = above.parent


def _fitted(exchange: Exchange, usage: Usage | None) -> Metering | None:
    """Return when the output came, stretched to what it was in truth."""
    meter = exchange.meter
    estimate = meter.usage.output
    came = metering_of(meter).came if exchange.legible else None
    total = 0 if usage is None else usage.output or 0
    if came is None or not estimate:
        return None

    def stretched(moment: float) -> int:
        return int(came(moment) * total / estimate + 0.5)

    return Metering(Basis.REPORTED, Basis.REPORTED, stretched)


def _bound_of(attributes: Mapping[str, object]) -> int | None:
    bound = attributes.get("gen_ai.request.max_tokens")
    return bound if isinstance(bound, int) and bound > 0 else None


def _seconds(call: Call) -> float:
    """Return how long a call took; outside runs only its span tells."""
    if call.run is not None:
        return call.ended_at - call.started_at
    report = call.report
    if report is None or report.start_time is None or report.end_time is None:
        return 0.0
    return (report.end_time - report.start_time) / 1e9


def _plain(attributes: Any) -> Mapping[str, object]:
    """Return a copy that is a plain dictionary.

    Every look into the SDK's own mapping goes through two frames of Python.
    """
    copy: Callable[[], Mapping[str, object]] | None = getattr(attributes, "copy", None)
    return dict(attributes or ()) if copy is None else copy()
