"""What tokens cost, in US dollars, as exact decimals.

A price is never guessed: no rates means ``None``, which the caller counts as unpriced
tokens and never as 0 dollars. Prices are handed in; this module knows none.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from decimal import Context, Decimal
from typing import TYPE_CHECKING, NamedTuple

from hangup.errors import ConfigError

if TYPE_CHECKING:
    from hangup.spend.usage import Usage

# Of our own: the application's context may round to six digits, or trap.
_EXACT = Context(prec=50, traps=[])
# For what is cut to the finest unit right after.
_SHARE = Context(prec=28, traps=[])
_ZERO = Decimal(0)
# Decimal places of a rate that count; a price list has six.
_MOST_PLACES = 30
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


class _Scaled(NamedTuple):
    """Rates as whole numbers of one small unit: exact, and five times as fast."""

    # Dollars of a unit are ten to this power; the rates are units per token.
    exponent: int
    input: int
    output: int | None
    cache_read: int | None
    cache_write: int | None
    reasoning: int | None
    per_call: int
    cache_write_1h: int | None


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
        cache_write_1h_per_mtok: For input written to a cache that keeps it for an hour;
            None for the rate of any other.
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
    cache_write_1h_per_mtok: Decimal | None = None
    _scaled: _Scaled = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for spec in fields(self):
            if spec.name in {"above", "_scaled"}:
                continue
            value = getattr(self, spec.name)
            if value is not None or spec.default is not None:
                object.__setattr__(self, spec.name, _amount(spec.name, value))
        object.__setattr__(self, "_scaled", _scale(self))

    def times(self, factor: Decimal) -> Rates:
        """Return these rates, every one of them multiplied: a batch discount."""

        def cut(amount: Decimal | None) -> Decimal | None:
            return None if amount is None else _EXACT.multiply(amount, factor)

        return Rates(
            _EXACT.multiply(self.input_per_mtok, factor),
            cut(self.output_per_mtok),
            cut(self.cache_read_per_mtok),
            cut(self.cache_write_per_mtok),
            cut(self.reasoning_per_mtok),
            _EXACT.multiply(self.per_call, factor),
            tuple((start, band.times(factor)) for start, band in self.above),
            cut(self.cache_write_1h_per_mtok),
        )


@dataclass(frozen=True, slots=True)
class ToolRates:
    """What one tool costs. Immutable.

    Attributes:
        per_call: Dollars of each call.
        per_second: Dollars of each second it runs.

    Raises:
        ConfigError: An amount is not a number, negative, or not finite.
    """

    per_call: Decimal = _ZERO
    per_second: Decimal = _ZERO

    def __post_init__(self) -> None:
        for spec in fields(self):
            amount = _amount(spec.name, getattr(self, spec.name))
            object.__setattr__(self, spec.name, amount)

    def cost(self, seconds: float) -> Cost:
        """Return what a call of so many seconds costs.

        The price of the call is committed when it starts, that of its seconds is spent
        while it runs. Seconds that are negative or not finite count as none.
        """
        if not self.per_second or not 0 < seconds < math.inf:
            return Cost(self.per_call, _ZERO)
        running = _EXACT.multiply(self.per_second, Decimal(seconds))
        # A binary fraction of a second is long; shares are no finer than this either.
        return Cost(self.per_call, _EXACT.quantize(running, _FINEST))


def _amount(name: str, value: object) -> Decimal:
    """Read an amount, through text, so that 0.1 is a tenth."""
    amount = Decimal(str(value), _EXACT)  # NaN for what is not a number
    if not amount.is_finite() or amount < 0:
        raise ConfigError(name, value, "give dollars as a number that is zero or more")
    return amount


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
    scaled = rates._scaled  # noqa: SLF001  its own module
    units = scaled.per_call
    if tokens_in:
        units += _input_units(scaled, tokens_in, usage)
    dollars_in = Decimal(units).scaleb(scaled.exponent, _EXACT) if units else _ZERO
    if not tokens_out:
        return Cost(dollars_in, _ZERO)
    if scaled.output is None:
        return None
    units = 0
    if usage.reasoning and scaled.reasoning is not None:
        part = min(tokens_out, usage.reasoning)
        tokens_out -= part
        units = part * scaled.reasoning
    units += tokens_out * scaled.output
    return Cost(dollars_in, Decimal(units).scaleb(scaled.exponent, _EXACT))


def _input_units(scaled: _Scaled, tokens: int, usage: Usage) -> int:
    units = 0
    # Clamped: a subset larger than its whole must not make the rest negative.
    if usage.cache_read and scaled.cache_read is not None:
        part = min(tokens, usage.cache_read)
        tokens -= part
        units += part * scaled.cache_read
    written = min(tokens, usage.cache_write or 0)
    if written and usage.cache_write_1h and scaled.cache_write_1h is not None:
        part = min(written, usage.cache_write_1h)
        tokens -= part
        written -= part
        units += part * scaled.cache_write_1h
    if written and scaled.cache_write is not None:
        tokens -= written
        units += written * scaled.cache_write
    return units + tokens * scaled.input


def _scale(rates: Rates) -> _Scaled:
    amounts = (
        rates.input_per_mtok,
        rates.output_per_mtok,
        rates.cache_read_per_mtok,
        rates.cache_write_per_mtok,
        rates.reasoning_per_mtok,
        rates.per_call,
        rates.cache_write_1h_per_mtok,
    )
    # As many decimal places as the finest of them has.
    finest = max(-_exponent(amount) for amount in amounts if amount is not None)
    places = min(max(0, finest), _MOST_PLACES)

    def units(amount: Decimal | None) -> int | None:
        return None if amount is None else _units(amount, places)

    return _Scaled(
        -places - 6,
        _units(rates.input_per_mtok, places),
        units(rates.output_per_mtok),
        units(rates.cache_read_per_mtok),
        units(rates.cache_write_per_mtok),
        units(rates.reasoning_per_mtok),
        _units(rates.per_call, places + 6),
        units(rates.cache_write_1h_per_mtok),
    )


def _units(amount: Decimal, places: int) -> int:
    return int(amount.scaleb(places, _EXACT))


def _exponent(amount: Decimal) -> int:
    exponent = amount.as_tuple().exponent
    return exponent if isinstance(exponent, int) else 0


def add_usd(a: Decimal, b: Decimal) -> Decimal:
    """Return the exact sum, whatever the application's decimal context is."""
    return _EXACT.add(a, b)


def total_usd(cost: Cost, total: Decimal) -> Cost:
    """Return a cost with this total, divided as ``cost`` is; the sum is exact.

    A cost of nothing tells no division: there the total is all input.
    """
    whole = _EXACT.add(*cost)
    if not whole:
        return Cost(total, _ZERO)
    if not cost.input:
        return Cost(_ZERO, total)
    share = _SHARE.divide(_SHARE.multiply(total, cost.input), whole)
    first = min(total, _EXACT.quantize(share, _FINEST))
    return Cost(first, _EXACT.subtract(total, first))


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
