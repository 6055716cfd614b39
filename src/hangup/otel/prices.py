"""Prices at start-up: the user's file, and genai-prices where it is installed.

The extra ``pricing`` brings genai-prices.

One call of genai-prices costs 60 to 150 us, mostly for finding the model and checking
its units. So each model is looked up once and its rates are kept: pricing a call is
then a few decimal operations. Nothing is fetched; its network updater stays off.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from decimal import Context, Decimal, localcontext
from importlib import metadata
from typing import TYPE_CHECKING

from hangup.core.guard import fault
from hangup.spend.pricefile import read_price_file
from hangup.spend.pricer import Pricer
from hangup.spend.pricing import Rates

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from genai_prices.types import ModelPrice, PriceCalculation, TieredPrices

_PACKAGE = "genai-prices"
# genai-prices finds the provider of most models by their name alone, but not of
# embeddings and some others: these sell what they make under names of their own.
_MAKERS = ("openai", "anthropic", "google", "mistral", "cohere", "perplexity")
# OpenTelemetry's name, the one before it, OpenInference's two.
_PROVIDERS = ("gen_ai.provider.name", "gen_ai.system", "llm.provider", "llm.system")
_BATCH = {"processing": "batch"}
# Some prices change with the date or the hour of the day.
_CONDITIONAL_SECONDS = 60.0
# Names of models are text from outside.
_MOST_MODELS = 1024


def load_pricer(path: str | None = None) -> Pricer:
    """Return what prices calls: the file at ``path`` first, then genai-prices.

    Blocks, for about 0.7 s the first time in a process: call it at start-up, never on
    the span path. Without a file and without genai-prices nothing has a price.

    Raises:
        ConfigError: The file is wrong; says where in it, and what is allowed there.
    """
    file = None if path is None else read_price_file(path)
    if not _installed():
        return Pricer(file)
    # Two caches: a batch has rates of its own, and few processes know of one.
    standard, batch = _CachedRates(_derive), _CachedRates(_derive_batch)
    standard("gpt-4o")  # loads the table now, not at the end of the first call

    def rates(model: str, provider: str, in_batch: bool) -> Rates | None:  # noqa: FBT001
        look_up = batch if in_batch else standard
        found = look_up(f"{provider}/{model}") if provider else None
        # A client of one provider may be pointed at another one's host.
        return look_up(model) if found is None else found

    return Pricer(file, rates, f"{_PACKAGE}@{_version()}")


def provider_of(attributes: Mapping[str, object]) -> str:
    """Return who serves a call, as its span says it; "" where it does not.

    For :meth:`Pricer.cost`: a provider that genai-prices does not know is no harm.
    """
    for name in _PROVIDERS:
        value = attributes.get(name)
        if value and isinstance(value, str):
            return value
    return ""


def _installed() -> bool:
    try:
        import genai_prices  # noqa: F401, PLC0415  optional, and slow to import
    except ImportError:
        return False
    return True


def _version() -> str:
    try:
        return metadata.version(_PACKAGE)
    except metadata.PackageNotFoundError:  # pragma: no cover  vendored, or frozen
        return "unknown"


class _CachedRates:
    """Remembers the rates of each model, known or not. Thread-safe.

    Args:
        derive: From a model's name and a Unix time to its rates, or None, and whether
            they hold for good.
        now: Seconds since the Unix epoch.
    """

    __slots__ = ("_derive", "_known", "_now", "_passing")

    def __init__(
        self,
        derive: Callable[[str, float], tuple[Rates | None, bool]],
        now: Callable[[], float] = time.time,
    ) -> None:
        self._derive = derive
        self._now = now
        self._known: dict[str, Rates | None] = {}
        self._passing: dict[str, tuple[Rates | None, float]] = {}

    def __call__(self, model: str) -> Rates | None:
        known = self._known
        if model in known:
            return known[model]
        now = self._now()
        held = self._passing.get(model)
        if held is not None and 0 <= now - held[1] < _CONDITIONAL_SECONDS:
            return held[0]
        rates, for_good = self._derive(model, now)
        if len(known) + len(self._passing) >= _MOST_MODELS:
            # Start afresh rather than grow; two threads may do so, to no harm.
            self._known = known = {}
            self._passing = {}
        if for_good:
            known[model] = rates
        else:
            self._passing[model] = (rates, now)
        return rates


def _derive(model: str, now: float) -> tuple[Rates | None, bool]:
    """Look a model up in genai-prices; the second value: its rates never change."""
    return _derive_as(model, now, None)


def _derive_batch(model: str, now: float) -> tuple[Rates | None, bool]:
    """Look up what a batch call of a model costs, otherwise as :func:`_derive`.

    A model without batch prices costs what it does at any time, as genai-prices says.
    """
    return _derive_as(model, now, _BATCH)


def _derive_as(
    model: str, now: float, context: dict[str, str] | None
) -> tuple[Rates | None, bool]:
    # In a decimal context of our own: the application's may round, or trap.
    with localcontext(Context(prec=50, traps=[])):
        try:
            found = _find(model, datetime.fromtimestamp(now, UTC), context)
            if found is None:
                return None, True
            rates = _rates(found.model_price)
        except Exception as error:  # noqa: BLE001  a fault of its table, for one model
            fault("genai-prices", error)
            return None, True
        for_good = not isinstance(found.model.prices, list) and (
            context is None
            or all(one.constraint is None for one in found.model.price_variants or ())
        )
        return rates, for_good


def _find(
    model: str, when: datetime, context: dict[str, str] | None
) -> PriceCalculation | None:
    """Find a model by the provider in front of its name, by itself, by its makers."""
    provider, slash, name = model.partition("/")
    attempts: list[tuple[str, str | None]] = [(name, provider)] if slash else []
    attempts += [(model, None), *((model, maker) for maker in _MAKERS)]
    for ref, provider_id in attempts:
        found = _calculate(ref, provider_id, when, context)
        if found is not None:
            return found
    return None


def _calculate(
    ref: str, provider: str | None, when: datetime, context: dict[str, str] | None
) -> PriceCalculation | None:
    import genai_prices  # noqa: PLC0415  optional

    try:
        return genai_prices.calc_price(
            genai_prices.Usage(input_tokens=0, output_tokens=0),
            ref,
            provider_id=provider,
            genai_request_timestamp=when,
            price_context=context,
        )
    except (LookupError, ValueError):  # unknown, or priced in a way it rejects
        return None


def _rates(price: ModelPrice) -> Rates | None:
    """Flatten prices per unit, each with tiers of its own, into bands of rates."""
    thresholds = sorted(
        {
            tier.start
            for value in vars(price).values()
            for tier in getattr(value, "tiers", ())
        }
    )
    base = _band(price, 0)
    if base is None:
        return None
    above = tuple(
        (start, band)
        for start in thresholds
        if (band := _band(price, start + 1)) is not None
    )
    return Rates(
        base.input_per_mtok,
        base.output_per_mtok,
        base.cache_read_per_mtok,
        base.cache_write_per_mtok,
        base.reasoning_per_mtok,
        base.per_call,
        above,
        base.cache_write_1h_per_mtok,
    )


def _band(price: ModelPrice, tokens: int) -> Rates | None:
    """Return the rates of a call with so many input tokens."""
    per_input = _at(price.input_mtok, tokens)
    if per_input is None:
        return None
    per_thousand_requests = _at(price.requests_kcount, tokens)
    return Rates(
        per_input,
        _at(price.output_mtok, tokens),
        _at(price.cache_read_mtok, tokens),
        _at(price.cache_write_mtok, tokens),
        _at(price.output_reasoning_mtok, tokens),
        (per_thousand_requests or Decimal(0)) / 1000,
        cache_write_1h_per_mtok=_at(price.cache_write_1h_mtok, tokens),
    )


def _at(price: Decimal | TieredPrices | None, tokens: int) -> Decimal | None:
    """Return a price at so many input tokens; the tier applies to the whole call."""
    if price is None:
        return None
    tiers = getattr(price, "tiers", None)
    if tiers is None:
        return price  # type: ignore[return-value]  # a plain amount
    rate: Decimal = price.base  # type: ignore[union-attr]  # it has tiers
    for tier in tiers:
        if tokens > tier.start:
            rate = tier.price
    return rate
