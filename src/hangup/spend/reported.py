"""Dollars that somebody else says a call cost: a bill, or a calculation.

The two are told apart, because they rank differently. A **bill** comes from who will
charge it, in the usage of the response or in a header beside it; no price list is
closer to the truth. A **calculation** is what an instrumentation wrote on a span out of
a price list of its own. Nothing on a span proves a bill:

- ``operation.cost`` (pydantic-ai, logfire) is what the installed genai-prices says
  (pydantic-ai, pull request 2767).
- ``gen_ai.cost.total_cost``, ``litellm.cost.total`` (LiteLLM), ``gen_ai.usage.cost``
  (OpenLIT and others) and ``llm.cost.total`` (OpenInference) come from the writer's own
  table, and some of them say 0 where that does not know the model.

So a calculation of 0 says nothing, and any other is used last, where no price is known.
Nothing here raises, whatever it is given.
"""

from __future__ import annotations

from decimal import Context, Decimal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_EXACT = Context(prec=50, traps=[])
_TICK = Decimal("1e-10")
# No call costs that much: a larger value is a broken report, or not in dollars.
_MOST_USD = Decimal(1_000_000)

_CALCULATED = (
    "gen_ai.usage.cost",
    "gen_ai.usage.cost_usd",
    "gen_ai.usage.total_cost",
    "gen_ai.usage.cost.total",
    "gen_ai.cost.total_cost",
    "litellm.cost.total",
    "llm.cost.total",
    "llm.usage.total_cost",
    "operation.cost",
)
_ANY_CALCULATED = frozenset(_CALCULATED)


def billed(usage: Mapping[str, object]) -> Decimal | None:
    """Read the bill in the ``usage`` object of a response; None when there is none.

    - OpenRouter: ``cost``, in credits of one dollar. With a key of the caller's own
      that is only the fee; ``cost_details.upstream_inference_cost`` is added to it.
    - Perplexity: ``cost.total_cost``.
    - xAI: ``cost_in_usd_ticks``, of which ten billion are a dollar.

    A bill of 0 is a bill: a free model. In a stream it comes with the last usage, and
    it is of the whole call.
    """
    ticks = _dollars(usage.get("cost_in_usd_ticks"), _TICK)
    if ticks is not None:
        return ticks
    cost = usage.get("cost")
    if isinstance(cost, dict):
        return _dollars(cost.get("total_cost"))
    dollars = _dollars(cost)
    if dollars is not None and usage.get("is_byok") is True:
        details = usage.get("cost_details")
        upstream = (
            _dollars(details.get("upstream_inference_cost"))
            if isinstance(details, dict)
            else None
        )
        # The fee alone is not the cost; what the provider takes is not known then.
        return None if upstream is None else _EXACT.add(dollars, upstream)
    return dollars


def billed_in_header(headers: Mapping[str, str]) -> Decimal | None:
    """Read the bill of a LiteLLM proxy; None when there is none.

    It stands in ``x-litellm-response-cost``, of calls that are not streamed. The proxy
    says 0 for models that it has no price for, so 0 says nothing.

    Args:
        headers: Of the response; the keys in lower case, or insensitive to it.
    """
    return _dollars(headers.get("x-litellm-response-cost")) or None


def calculated(attributes: Mapping[str, object]) -> Decimal | None:
    """Read what an instrumentation calculated for a call, in the spellings above.

    Only of the span of one model call: an agent's repeats the sum of its calls.

    Returns:
        None when there is none, or it is 0.
    """
    if _ANY_CALCULATED.isdisjoint(attributes):  # nearly always: in one step
        return None
    for name in _CALCULATED:
        if name in attributes:
            dollars = _dollars(attributes[name])
            if dollars:
                return dollars
    return None


def _dollars(value: object, unit: Decimal = Decimal(1)) -> Decimal | None:
    """Read an amount, through text, so that 0.1 is a tenth; None for what is none."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str, Decimal)):
        return None
    if isinstance(value, int) and value.bit_length() > 128:  # noqa: PLR2004  no text
        return None
    amount = _EXACT.multiply(Decimal(str(value), _EXACT), unit)
    return amount if amount.is_finite() and 0 <= amount <= _MOST_USD else None
