"""Where a model request meets the run: asked for, opened, closed.

The HTTP layers (``clients``) see every request that leaves. Those to a model become
exchanges here: the innermost report of the call around them, or calls of their own
where nobody made a span.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from opentelemetry import trace

from hangup import config
from hangup.core.admission import admit, stop_here
from hangup.core.tree import current_task
from hangup.otel import calls
from hangup.otel.call import MODEL_CALLS, Exchange, least_time
from hangup.otel.context import run_in
from hangup.otel.hosts import host_listed
from hangup.spend.meter import Meter

if TYPE_CHECKING:
    from hangup.core.run import Run
    from hangup.otel.recorder import Recorder


_PROVIDERS: Final = (
    (".openai.com", "openai"),
    (".anthropic.com", "anthropic"),
    (".googleapis.com", "google"),
    (".openai.azure.com", "azure"),
    (".openrouter.ai", "openrouter"),
)


class _Watch:
    recorder: Recorder | None = None


def watch(recorder: Recorder | None) -> None:
    """Say who keeps the books; None: nobody, and requests are only asked for."""
    _Watch.recorder = recorder


class Opening(NamedTuple):
    """What became of a request that wants to leave.

    Attributes:
        run: The run it belongs to, if it is made for a spending call.
        exchange: To be fed and ended, where it goes to a model; it is open.
        refusal: What to raise instead of sending it.
    """

    run: Run | None = None
    exchange: Exchange | None = None
    refusal: BaseException | None = None


_NOBODYS = Opening()


def open_request(host: str, path: str, body: bytes | None) -> Opening:
    """Ask for a request, and open its exchange if it goes to a model.

    A model client's own retries are requests of one call whose span began long ago, and
    some calls have no span at all: both are asked for here. Requests that neither stand
    in a spending call nor go to a model are nobody's business.

    Args:
        host: Where it goes.
        path: The target, with or without a query.
        body: Its body; None where that is not known yet.
    """
    run = run_in(None)
    recorder = _Watch.recorder
    if run is None and recorder is None:
        return _NOBODYS
    meter = Meter.for_request(host, path, body)
    if run is None and meter is None:
        return _NOBODYS
    here = trace.get_current_span().get_span_context()
    around = None if recorder is None else recorder.calling_here(here, run)
    if run is not None:
        inside = around is not None or run.work.tree.calling(current_task())
        if not inside and meter is None:
            return _NOBODYS
        refusal = None
        if around is not None and around.protected:
            run.begin_spending()
        elif inside and (meter is None or _is_same_call(around)):
            refusal = stop_here(run)  # counted when the call began
        else:
            needs = run.settings.needs
            model = None
            if meter is not None and (needs or not _goes_on(run)):
                model = meter.request_model  # parses the body: not for nothing
            least = least_time(needs, calls.INFERENCE, model)
            refusal = admit(run, calls.INFERENCE, least, model)
        if refusal is not None:
            return Opening(run, None, refusal)
    if meter is None or recorder is None:
        return Opening(run)
    exchange = Exchange(meter)
    exchange.run = run
    exchange.parent = around
    exchange.stands_in(here)
    exchange.provider = _provider_at(host)
    exchange.stops = host_listed(host, config.current().stops_on_close)
    recorder.start_exchange(exchange)
    meter.started_at = exchange.started_at
    return Opening(run, exchange)


def end(exchange: Exchange) -> None:
    """Close an exchange: its answer was read, cut, or never came. Idempotent.

    One whose ``ending`` says so stays open.
    """
    ending, exchange.ending = exchange.ending, None
    if ending is not None and ending():
        return
    if _Watch.recorder is not None:
        _Watch.recorder.end_exchange(exchange)


def _goes_on(run: Run) -> bool:
    return run.token.abandonment is None and run.remaining() > 0


def _provider_at(host: str) -> str:
    """Return who serves there, as prices know it; "" for anybody."""
    name = f".{host.lower()}"
    for suffix, provider in _PROVIDERS:
        if name.endswith(suffix):
            return provider
    return ""


def _is_same_call(around: object) -> bool:
    # None: a call is open on this task, though not by a span of this provider.
    return around is None or getattr(around, "kind", None) in MODEL_CALLS
