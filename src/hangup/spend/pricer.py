"""The one place that says what a call cost, and who says so.

The first that speaks wins:

1. the provider's own bill for this call (:func:`hangup.spend.reported.billed`),
2. the user's price file (:mod:`hangup.spend.pricefile`),
3. a price list of all models, handed in (genai-prices),
4. what an instrumentation calculated (:func:`hangup.spend.reported.calculated`).

If none does there is no price, which is never 0 dollars.
"""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Generic, TypeVar

from hangup.core.guard import fault
from hangup.spend.pricing import Cost, Rates, cost, total_usd

if TYPE_CHECKING:
    from collections.abc import Callable

    from hangup.spend.pricefile import PriceFile
    from hangup.spend.usage import Usage

_Found = TypeVar("_Found")

# Names of models and tools are text from outside.
_MOST_NAMES = 1024
# How a bill is divided where no price list knows the model: the median of what output
# costs to input, over the 2,044 models of genai-prices 0.2.3, is 3.7.
_OUTPUT_TO_INPUT = 4


class Pricer:
    """Prices model calls and tool calls. Thread-safe, bounded, never raises, no I/O.

    The first call of a model looks it up; later ones take a few decimal operations.

    Args:
        file: The user's own prices.
        rates: The price list of all models: from a model's name, its provider or "",
            and whether the call was sent in a batch, to its rates or None. It keeps
            what it has looked up.
        rates_version: What that list is called, with its version.
    """

    __slots__ = ("_models", "_rates", "_tools", "price_version")

    price_version: str
    """Which prices these are: ``contract@1f3a9c2e77b0, genai-prices@0.2.3``."""

    def __init__(
        self,
        file: PriceFile | None = None,
        rates: Callable[[str, str, bool], Rates | None] | None = None,
        rates_version: str = "",
    ) -> None:
        self._models = None if file is None else _Remembered(file.model)
        self._tools = None if file is None else _Remembered(file.tool)
        self._rates = rates
        versions = ("" if file is None else file.version, rates_version)
        self.price_version = ", ".join(filter(None, versions)) or "none"

    def cost(  # noqa: PLR0913  what is known of a call, most of it seldom
        self,
        model: str,
        usage: Usage,
        *,
        provider: str = "",
        reported: Decimal | None = None,
        calculated: Decimal | None = None,
        batch: bool = False,
    ) -> Cost | None:
        """Return what a call of a model cost, or None where nobody knows a price.

        A bill or a calculation is divided into input and output as the price list
        would; its total is kept exactly.

        Args:
            model: As it was requested.
            usage: What the call used.
            provider: Who serves it, as ``gen_ai.provider.name`` says it; "" for not
                known. The file does not ask, a list of all models needs it for some.
            reported: The provider's bill for it, in dollars.
            calculated: What an instrumentation says it cost, in dollars.
            batch: It was sent through the provider's batch service.
        """
        try:
            rates = self._rates_of(model, provider, batch)
            listed = None if rates is None else cost(rates, usage)
            total = _amount(reported)
            if total is None:
                if listed is not None or calculated is None:
                    return listed
                total = _amount(calculated)
                if total is None:
                    return None
            return total_usd(_by_tokens(usage) if listed is None else listed, total)
        except Exception as error:  # noqa: BLE001  any fault of ours or of a list
            fault("Pricer.cost", error)
            return None

    def tool(self, name: str, seconds: float) -> Cost | None:
        """Return what a call of a tool cost, or None where the file does not price it.

        Its price per call is in ``input``, committed at the start; its price per
        second is in ``output``, spent evenly while it runs.

        Args:
            name: The tool's name.
            seconds: How long it ran.
        """
        try:
            rates = None if self._tools is None else self._tools.get(name)
            return None if rates is None else rates.cost(seconds)
        except Exception as error:  # noqa: BLE001  any fault of ours
            fault("Pricer.tool", error)
            return None

    def _rates_of(self, model: str, provider: str, batch: bool) -> Rates | None:  # noqa: FBT001
        if self._models is not None:
            price = self._models.get(model)
            if price is not None:
                return price.batch if batch else price.standard
        return None if self._rates is None else self._rates(model, provider, batch)


class _Remembered(Generic[_Found]):
    """Remembers what a name was found to be. Thread-safe, bounded."""

    __slots__ = ("_find", "_known")

    def __init__(self, find: Callable[[str], _Found | None]) -> None:
        self._find = find
        self._known: dict[str, _Found | None] = {}

    def get(self, name: str) -> _Found | None:
        known = self._known
        if name in known:
            return known[name]
        if len(known) >= _MOST_NAMES:
            # Start afresh rather than grow; two threads may do so, to no harm.
            self._known = known = {}
        found = known[name] = self._find(name)
        return found


def _amount(dollars: Decimal | None) -> Decimal | None:
    if dollars is None or not dollars.is_finite():
        return None
    return None if dollars.is_signed() and dollars else dollars


def _by_tokens(usage: Usage) -> Cost:
    """Return a cost of no model's: only how its parts are to each other matters."""
    return Cost(
        Decimal(usage.input or 0), Decimal((usage.output or 0) * _OUTPUT_TO_INPUT)
    )
