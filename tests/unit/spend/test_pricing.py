"""Prices: exact, subsets never added, and no price is never 0 dollars."""

from __future__ import annotations

import sys
from decimal import Context, Decimal, Inexact, localcontext
from typing import TYPE_CHECKING

import genai_prices
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hangup.errors import ConfigError
from hangup.otel.prices import _CachedRates, load_pricer
from hangup.spend.pricing import (
    Cost,
    Rates,
    cost,
    share_usd,
)
from hangup.spend.usage import Usage

if TYPE_CHECKING:
    from collections.abc import Callable

    Priced = Callable[[str, Usage], Decimal | None]

USD = Decimal
RATES = Rates(USD("2.5"), USD(10), cache_read_per_mtok=USD("1.25"))


def test_input_and_output_are_priced_at_their_rates() -> None:
    assert cost(RATES, Usage(1_000_000, 100_000)) == Cost(USD("2.5"), USD(1))


def test_cached_input_is_priced_at_its_own_rate_and_not_twice() -> None:
    priced = cost(RATES, Usage(1_000_000, 0, cache_read=400_000))
    assert priced == Cost(USD("2.0"), USD(0))


def test_subsets_without_a_rate_are_priced_like_their_whole() -> None:
    usage = Usage(1_000_000, 100_000, cache_write=500_000, reasoning=50_000)
    assert cost(RATES, usage) == cost(RATES, Usage(1_000_000, 100_000))


def test_a_subset_larger_than_its_whole_is_no_rebate() -> None:
    priced = cost(RATES, Usage(100, 0, cache_read=1_000_000))
    assert priced == Cost(USD("0.000125"), USD(0))


def test_a_cache_of_an_hour_is_a_part_of_what_was_written() -> None:
    rates = Rates(USD(1), cache_write_per_mtok=USD(2), cache_write_1h_per_mtok=USD(4))
    usage = Usage(1_000_000, 0, cache_write=500_000, cache_write_1h=100_000)
    assert cost(rates, usage) == Cost(USD("1.7"), USD(0))
    more = Usage(1_000_000, 0, cache_write=500_000, cache_write_1h=900_000)
    assert cost(rates, more) == Cost(USD("2.5"), USD(0))
    plain = Rates(USD(1), cache_write_per_mtok=USD(2))
    assert cost(plain, usage) == Cost(USD("1.5"), USD(0))
    only = Rates(USD(1), cache_write_1h_per_mtok=USD(4))
    assert cost(only, usage) == Cost(USD("1.3"), USD(0))


def test_reasoning_is_priced_at_its_own_rate() -> None:
    rates = Rates(USD(1), USD(2), reasoning_per_mtok=USD(4))
    priced = cost(rates, Usage(0, 1_000_000, reasoning=500_000))
    assert priced == Cost(USD(0), USD(3))


def test_a_price_per_call_is_committed_at_the_start() -> None:
    rates = Rates(USD(0), USD(0), per_call=USD("0.005"))
    assert cost(rates, Usage(10, 10)) == Cost(USD("0.005"), USD(0))


def test_long_input_moves_the_whole_call_to_the_higher_rates() -> None:
    rates = Rates(
        USD(1),
        USD(2),
        above=((100, Rates(USD(10), USD(20))), (200, Rates(USD(100), USD(200)))),
    )
    per_mtok = {
        tokens: (int(priced.input * 10**6 / tokens), int(priced.output * 10**6))
        for tokens in (100, 101, 200, 201)
        if (priced := cost(rates, Usage(tokens, 1))) is not None
    }
    assert per_mtok == {100: (1, 2), 101: (10, 20), 200: (10, 20), 201: (100, 200)}


def test_an_unknown_half_is_left_out_and_an_unknown_call_has_no_price() -> None:
    assert cost(RATES, Usage(1_000_000, None)) == Cost(USD("2.5"), USD(0))
    assert cost(RATES, Usage(None, 1_000_000)) == Cost(USD(0), USD(10))
    assert cost(RATES, Usage(None, None)) is None


def test_output_without_a_rate_is_unpriced_rather_than_free() -> None:
    embeddings = Rates(USD("0.02"))
    assert cost(embeddings, Usage(1_000_000, 0)) == Cost(USD("0.02"), USD(0))
    assert cost(embeddings, Usage(1_000_000, 1)) is None


def test_a_free_model_costs_zero() -> None:
    assert cost(Rates(USD(0), USD(0)), Usage(10, 10)) == Cost(USD(0), USD(0))


@pytest.mark.parametrize("amount", ["-1", "nan", "inf", "cheap", True, object()])
def test_a_rate_that_is_no_amount_is_a_config_error(amount: object) -> None:
    with pytest.raises(ConfigError, match="output_per_mtok"):
        Rates(USD(1), amount)  # type: ignore[arg-type]  # that is the point


def test_rates_may_be_written_as_text_or_numbers() -> None:
    assert Rates("0.1", 0.1) == Rates(USD("0.1"), USD("0.1"))  # type: ignore[arg-type]


def test_the_decimal_context_of_the_application_does_not_matter() -> None:
    usage = Usage(123_457, 98_765, cache_read=1_234)
    expected = cost(RATES, usage)
    with localcontext(Context(prec=3, traps=[Inexact])):
        assert cost(RATES, usage) == expected
        assert share_usd(USD("0.123456789"), 1, 3) == (
            USD("0.041152263"),
            USD("0.082304526"),
        )


@given(
    st.decimals(0, 1_000, places=12),
    st.integers(0, 10**9),
    st.integers(1, 10**9),
)
def test_shares_sum_exactly_to_the_amount(
    amount: Decimal, part: int, more: int
) -> None:
    first, rest = share_usd(amount, part, part + more)
    assert first + rest == amount
    assert first >= 0
    assert rest >= 0


def test_a_share_is_never_more_than_the_amount() -> None:
    assert share_usd(USD("6e-16"), 1, 1) == (USD("6e-16"), USD(0))


@pytest.fixture(scope="module")
def priced() -> Priced:
    pricer = load_pricer()

    def price(model: str, usage: Usage) -> Decimal | None:
        found = pricer.cost(model, usage)
        return None if found is None else found.total

    return price


@pytest.mark.parametrize(
    "usage",
    [
        Usage(1_000, 500),
        Usage(1_000, 0),
        Usage(0, 0),
        Usage(10_000, 700, cache_read=6_000, reasoning=300),
        Usage(10_000, 700, cache_read=6_000, cache_write=1_000),
        Usage(300_000, 2_000, cache_read=1_000),
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "model",
    [
        *("gpt-4o", "gpt-4o-2024-08-06", "gpt-4o-mini", "gpt-5", "gpt-5.4", "o3"),
        *("claude-sonnet-4-5", "claude-3-5-haiku-latest", "gemini-2.5-pro"),
        *("mistral-large-latest", "perplexity/sonar", "perplexity/sonar-deep-research"),
    ],
)
def test_cached_rates_agree_with_genai_prices(
    priced: Priced, model: str, usage: Usage
) -> None:
    provider, _, name = model.rpartition("/")
    theirs = genai_prices.calc_price(
        genai_prices.Usage(
            input_tokens=usage.input,
            output_tokens=usage.output,
            cache_read_tokens=usage.cache_read,
            cache_write_tokens=usage.cache_write,
            output_reasoning_tokens=usage.reasoning,
        ),
        name,
        provider_id=provider or None,
    )
    assert priced(model, usage) == theirs.total_price


def test_a_model_is_found_with_its_provider_in_front(priced: Priced) -> None:
    usage = Usage(1_000_000, 0)
    assert priced("openai/text-embedding-3-small", usage) == USD("0.02")
    assert priced("openai/gpt-4o", usage) == priced("gpt-4o", usage)


@pytest.mark.parametrize("model", ["", "fake-model", "nobody/gpt-4o", "/", "whisper-1"])
def test_an_unknown_model_has_no_price(priced: Priced, model: str) -> None:
    assert priced(model, Usage(1, 1)) is None


def test_without_genai_prices_nothing_has_a_price(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "genai_prices", None)
    assert load_pricer().cost("gpt-4o", Usage(1, 1)) is None


def derive_counting(
    asked: list[str], *, for_good: bool
) -> Callable[[str, float], tuple[Rates | None, bool]]:
    def derive(model: str, now: float) -> tuple[Rates | None, bool]:
        asked.append(model)
        return (None if model == "unknown" else RATES), for_good

    return derive


def test_a_model_is_looked_up_once_known_or_not() -> None:
    asked: list[str] = []
    rates = _CachedRates(derive_counting(asked, for_good=True), lambda: 0.0)
    assert [rates("m"), rates("m"), rates("unknown"), rates("unknown")] == [
        RATES,
        RATES,
        None,
        None,
    ]
    assert asked == ["m", "unknown"]


def test_rates_that_change_with_the_hour_are_looked_up_again_after_a_minute() -> None:
    asked: list[str] = []
    now = [1000.0]
    rates = _CachedRates(derive_counting(asked, for_good=False), lambda: now[0])
    for seconds in (1000.0, 1059.0, 1060.0, 900.0):
        now[0] = seconds
        assert rates("m") == RATES
    assert asked == ["m"] * 3


def test_the_cache_is_bounded_whatever_models_are_named() -> None:
    rates = _CachedRates(derive_counting([], for_good=True), lambda: 0.0)
    for number in range(3000):
        rates(f"model-{number}")
    assert len(rates._known) <= 1024
