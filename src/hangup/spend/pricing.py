"""What tokens cost, in US dollars, as exact decimals.

A price is never guessed: no rates means ``None``, which the caller counts as unpriced
tokens and never as 0 dollars. Prices are handed in; this module knows none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from decimal import Context, Decimal
from typing import NamedTuple, Protocol

from hangup.errors import ConfigError
from hangup.spend.usage import Usage

PriceFn = Callable[[str, Usage], Decimal | None]
"""Dollars for one call of a model, or None when there is no price. Must not raise."""

# Of our own: the application's context may round to six digits, or trap.
_EXACT = Context(prec=50, traps=[])
_ZERO = Decimal(0)
_MTOK = Decimal("1e-6")
# Shares are cut to femto-dollars, so that the shares of an amount sum exactly to it.
_FINEST = Decimal("1e-15")


class Cost(NamedTuple):
    """Dollars of one call, in the two parts that can have different fates.

    Attributes:
        input: Committed when the call starts: its input, and a price per call.
        output: Spent while it runs.
    """

    input: Decimal
    output: Decimal

    @property
    def total(self) -> Decimal:
        """The dollars of the whole call."""
        return add_usd(self.input, self.output)


class Price(Protocol):
    """A :data:`PriceFn` that also knows the parts. Thread-safe, never raises."""

    def __call__(self, model: str, usage: Usage, /) -> Decimal | None:
        """Return the dollars of one call, or None when there is no price."""

    def cost(self, model: str, usage: Usage, /) -> Cost | None:
        """Return the same as input and output, or None when there is no price."""


@dataclass(frozen=True, slots=True)
class Rates:
    """What one model costs. Immutable; amounts may be given as text or numbers.

    Attributes:
        input_per_mtok: Dollars per million input tokens.
        output_per_mtok: Dollars per million output tokens. None where the model has
            no price for output (embeddings); a call that has output all the same is
            then unpriced.
        cache_read_per_mtok: For input read from a cache; None for the input rate.
        cache_write_per_mtok: For input written to a cache; None for the input rate.
        reasoning_per_mtok: For reasoning; None for the output rate.
        per_call: Dollars per call, on top.
        above: Rates of the whole call once its input exceeds so many tokens, in
            ascending order. They replace these rates, they are not added.

    Raises:
        ConfigError: An amount is not a number, negative, or not finite.
    """

    input_per_mtok: Decimal
    output_per_mtok: Decimal | None = None
    cache_read_per_mtok: Decimal | None = None
    cache_write_per_mtok: Decimal | None = None
    reasoning_per_mtok: Decimal | None = None
    per_call: Decimal = _ZERO
    above: tuple[tuple[int, Rates], ...] = ()

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name == "above" or (value is None and field.default is None):
                continue
            object.__setattr__(self, field.name, _amount(field.name, value))


def _amount(name: str, value: object) -> Decimal:
    """Read an amount, through text, so that 0.1 is a tenth."""
    amount = Decimal(str(value), _EXACT)  # NaN for what is not a number
    if not amount.is_finite() or amount < 0:
        raise ConfigError(name, value, "give dollars as a number that is zero or more")
    return amount


class PriceBook:
    """Prices calls by looking up the rates of their model. Thread-safe.

    Args:
        lookups: Functions from a model's name to its rates or None, asked in order:
            ``PriceBook(my_rates.get, genai_rates)``. They must not raise.
    """

    __slots__ = ("_lookups",)

    def __init__(self, *lookups: Callable[[str], Rates | None]) -> None:
        self._lookups = lookups

    def rates(self, model: str) -> Rates | None:
        """Return the rates of a model from the first lookup that knows it."""
        for lookup in self._lookups:
            rates = lookup(model)
            if rates is not None:
                return rates
        return None

    def cost(self, model: str, usage: Usage, /) -> Cost | None:
        """See :meth:`Price.cost`."""
        rates = self.rates(model)
        return None if rates is None else cost(rates, usage)

    def __call__(self, model: str, usage: Usage, /) -> Decimal | None:
        """See :meth:`Price.__call__`."""
        parts = self.cost(model, usage)
        return None if parts is None else parts.total


def cost(rates: Rates, usage: Usage) -> Cost | None:
    """Return what a call costs at these rates.

    Cache and reasoning tokens are subsets: they are taken out of their whole, priced
    at their own rate and never added to it. An unknown input or output is left out.

    Returns:
        None when nothing of the usage is known, or it has output without a price.
    """
    tokens_in = usage.input
    tokens_out = usage.output
    if tokens_in is None and tokens_out is None:
        return None
    for threshold, band in rates.above:
        if tokens_in is None or tokens_in <= threshold:
            break
        rates = band
    dollars_in = _input(rates, tokens_in, usage) if tokens_in else _ZERO
    if rates.per_call:
        dollars_in = _EXACT.add(dollars_in, rates.per_call)
    if not tokens_out:
        return Cost(dollars_in, _ZERO)
    if rates.output_per_mtok is None:
        return None
    return Cost(dollars_in, _output(rates, rates.output_per_mtok, tokens_out, usage))


def _input(rates: Rates, tokens: int, usage: Usage) -> Decimal:
    rate = rates.input_per_mtok
    fma = _EXACT.fma
    sum_ = _ZERO
    # Clamped: a subset larger than its whole must not make the rest negative.
    if usage.cache_read and rates.cache_read_per_mtok is not None:
        part = min(tokens, usage.cache_read)
        tokens -= part
        sum_ = fma(rates.cache_read_per_mtok, part, sum_)
    if usage.cache_write and rates.cache_write_per_mtok is not None:
        part = min(tokens, usage.cache_write)
        tokens -= part
        sum_ = fma(rates.cache_write_per_mtok, part, sum_)
    return _EXACT.multiply(fma(rate, tokens, sum_), _MTOK)


def _output(rates: Rates, rate: Decimal, tokens: int, usage: Usage) -> Decimal:
    sum_ = _ZERO
    if usage.reasoning and rates.reasoning_per_mtok is not None:
        part = min(tokens, usage.reasoning)
        tokens -= part
        sum_ = _EXACT.multiply(rates.reasoning_per_mtok, part)
    return _EXACT.multiply(_EXACT.fma(rate, tokens, sum_), _MTOK)


def cost_of(price: PriceFn, model: str, usage: Usage) -> Cost | None:
    """Return the parts of what any price function says about a call.

    A function that knows only totals is asked twice: the call without its output is
    the part committed at the start.
    """
    if isinstance(price, PriceBook):
        return price.cost(model, usage)
    total = price(model, usage)
    if total is None or not usage.output:
        return None if total is None else Cost(total, _ZERO)
    start = price(
        model, Usage(usage.input or 0, 0, usage.cache_read, usage.cache_write)
    )
    if start is None or start > total:
        return Cost(_ZERO, total)
    return Cost(start, _EXACT.subtract(total, start))


def add_usd(a: Decimal, b: Decimal) -> Decimal:
    """Return the exact sum, whatever the application's decimal context is."""
    return _EXACT.add(a, b)


def share_usd(amount: Decimal, part: float, whole: float) -> tuple[Decimal, Decimal]:
    """Divide an amount as ``part`` to ``whole - part``; the two sum exactly to it."""
    if not amount or not part:
        return _ZERO, amount
    fraction = (
        Decimal(part) if whole == 1 else _EXACT.divide(Decimal(part), Decimal(whole))
    )
    first = _EXACT.quantize(_EXACT.multiply(amount, fraction), _FINEST)
    first = min(amount, first)
    return first, _EXACT.subtract(amount, first)
