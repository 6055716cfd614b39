"""Who says what a call cost: bill, file, list, calculation; and nobody is never 0."""

from __future__ import annotations

import random
import sys
import threading
import time
from decimal import Context, Decimal, Inexact, localcontext
from typing import TYPE_CHECKING

import genai_prices
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hangup.core import guard
from hangup.errors import ConfigError
from hangup.otel.prices import load_pricer, provider_of
from hangup.spend.pricefile import ModelPrice, PriceFile
from hangup.spend.pricer import Pricer
from hangup.spend.pricing import Cost, Rates, ToolRates
from hangup.spend.usage import Usage, read_usage

if TYPE_CHECKING:
    from pathlib import Path

USD = Decimal
MILLION = Usage(1_000_000, 1_000_000)
MODELS = (
    *("gpt-4o", "gpt-4o-mini", "gpt-4.1", "gpt-5", "gpt-5-mini", "gpt-5.4", "o3"),
    *("claude-sonnet-4-5", "claude-haiku-4-5", "claude-opus-4-5", "claude-opus-4-6"),
    *("gemini-2.5-pro", "gemini-2.5-flash", "gemini-3-pro-preview"),
    *("mistral-large-latest", "grok-4", "command-r-plus", "deepseek-chat"),
    *("perplexity/sonar", "perplexity/sonar-deep-research"),
)


def rates_of(price: int) -> ModelPrice:
    rates = Rates(USD(price), USD(2 * price))
    return ModelPrice(rates, rates.times(USD("0.5")))


FILE = PriceFile(
    "mine@1", {"m": rates_of(1)}, {"search": ToolRates(USD("0.01"), USD("0.001"))}
)


def listed(model: str, provider: str, batch: bool) -> Rates | None:  # noqa: FBT001
    if model in {"m", "other"}:
        return rates_of(5).batch if batch else rates_of(5).standard
    return rates_of(7).standard if provider == "house" else None


@pytest.fixture
def pricer() -> Pricer:
    return Pricer(FILE, listed, "list@2")


@pytest.fixture(scope="module")
def genai() -> Pricer:
    return load_pricer()


def test_the_file_goes_before_the_list(pricer: Pricer) -> None:
    assert pricer.cost("m", MILLION) == Cost(USD(1), USD(2))
    assert pricer.cost("other", MILLION) == Cost(USD(5), USD(10))
    assert pricer.cost("m", MILLION, batch=True) == Cost(USD("0.5"), USD(1))
    assert pricer.cost("other", MILLION, batch=True) == Cost(USD("2.5"), USD(5))


def test_the_list_is_told_the_provider(pricer: Pricer) -> None:
    assert pricer.cost("x", MILLION) is None
    assert pricer.cost("x", MILLION, provider="house") == Cost(USD(7), USD(14))


def test_a_bill_goes_before_all_and_is_divided_as_the_prices_would(
    pricer: Pricer,
) -> None:
    cost = pricer.cost("m", MILLION, reported=USD("0.9"), calculated=USD(8))
    assert cost == Cost(USD("0.3"), USD("0.6"))
    assert pricer.cost("m", MILLION, reported=USD(0)) == Cost(USD(0), USD(0))


def test_a_bill_for_an_unknown_model_is_divided_by_its_tokens(pricer: Pricer) -> None:
    """Output counts four times, as most price lists have it."""
    cost = pricer.cost("x", Usage(600, 100), reported=USD(1))
    assert cost == Cost(USD("0.6"), USD("0.4"))
    assert pricer.cost("x", Usage(None, None), reported=USD(1)) == Cost(USD(1), USD(0))


def test_a_calculation_is_used_only_where_no_price_is_known(pricer: Pricer) -> None:
    assert pricer.cost("m", MILLION, calculated=USD(9)) == Cost(USD(1), USD(2))
    cost = pricer.cost("x", MILLION, calculated=USD(5))
    assert cost == Cost(USD(1), USD(4))


@pytest.mark.parametrize("wrong", [USD(-1), USD("nan"), USD("inf")])
def test_what_is_no_amount_is_not_heard(pricer: Pricer, wrong: Decimal) -> None:
    assert pricer.cost("m", MILLION, reported=wrong) == Cost(USD(1), USD(2))
    assert pricer.cost("x", MILLION, reported=wrong) is None
    assert pricer.cost("x", MILLION, calculated=wrong) is None


def test_nobody_knows_is_no_price(pricer: Pricer) -> None:
    assert pricer.cost("x", MILLION) is None
    assert pricer.cost("m", Usage(None, None)) is None
    assert Pricer().cost("m", MILLION) is None
    assert Pricer().tool("search", 1.0) is None


@given(
    st.decimals(0, 1000, places=18),
    st.integers(0, 10**9),
    st.integers(0, 10**9),
    st.sampled_from(["m", "x"]),
)
def test_the_parts_of_a_bill_sum_exactly_to_it(
    bill: Decimal, tokens_in: int, tokens_out: int, model: str
) -> None:
    with localcontext(Context(prec=2, traps=[Inexact])):
        cost = Pricer(FILE, listed).cost(
            model, Usage(tokens_in, tokens_out), reported=bill
        )
    assert cost is not None
    assert cost.total == bill
    assert min(cost) >= 0


def test_a_tool_costs_by_call_and_by_second(pricer: Pricer) -> None:
    assert pricer.tool("Search", 2.5) == Cost(USD("0.01"), USD("0.0025"))
    assert pricer.tool("other", 2.5) is None


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_a_tool_without_a_time_costs_its_call(pricer: Pricer, seconds: float) -> None:
    assert pricer.tool("search", seconds) == Cost(USD("0.01"), USD(0))


def test_the_version_names_every_price_list() -> None:
    assert Pricer(FILE, listed, "list@2").price_version == "mine@1, list@2"
    assert Pricer(FILE).price_version == "mine@1"
    assert Pricer().price_version == "none"
    assert load_pricer().price_version == f"genai-prices@{genai_prices.__version__}"


def test_a_list_that_fails_is_no_price_and_no_error() -> None:
    def broken(model: str, provider: str, batch: bool) -> Rates | None:  # noqa: FBT001
        raise KeyError(model)

    pricer = Pricer(FILE, broken)
    strict = guard.strict(on=False)
    try:
        assert pricer.cost("x", MILLION) is None
        assert pricer.cost("m", MILLION) is not None
    finally:
        guard.strict(strict)


def test_what_is_remembered_is_bounded_whatever_is_named(pricer: Pricer) -> None:
    assert pricer._models is not None
    assert pricer._tools is not None
    most = 0
    for number in range(3_000):
        pricer.cost(f"model-{number}", MILLION)
        pricer.tool(f"tool-{number}", 1.0)
        most = max(most, len(pricer._models._known), len(pricer._tools._known))
    assert most == 1024
    assert pricer.cost("m", MILLION) == Cost(USD(1), USD(2))


def test_threads_see_one_price() -> None:
    pricer = Pricer(FILE, listed)
    wrong: list[Cost | None] = []

    def price() -> None:
        for number in range(500):
            cost = pricer.cost("m", MILLION)
            if cost != Cost(USD(1), USD(2)):
                wrong.append(cost)
            pricer.cost(f"model-{number}", MILLION)

    threads = [threading.Thread(target=price) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def theirs(model: str, usage: Usage, *, batch: bool) -> Decimal:
    provider, _, name = model.rpartition("/")
    return genai_prices.calc_price(
        genai_prices.Usage(
            input_tokens=usage.input,
            output_tokens=usage.output,
            cache_read_tokens=usage.cache_read,
            cache_write_tokens=usage.cache_write,
            cache_write_1h_tokens=usage.cache_write_1h,
            output_reasoning_tokens=usage.reasoning,
        ),
        name,
        provider_id=provider or None,
        price_context={"processing": "batch"} if batch else None,
    ).total_price


def test_a_thousand_calls_of_twenty_models_cost_what_genai_prices_says(
    genai: Pricer,
) -> None:
    """Each of them exactly, so their sum to the cent and far below it."""
    dice = random.Random(3)  # noqa: S311  a fixed draw, nothing secret
    ours = USD(0)
    expected = USD(0)
    for number in range(1_000):
        model = MODELS[number % len(MODELS)]
        whole = dice.choice((dice.randrange(20_000), dice.randrange(600_000)))
        read = dice.randrange(whole + 1)
        output = dice.randrange(20_000)
        written = dice.choice((None, (whole - read) // 2))
        usage = Usage(
            whole,
            output,
            cache_read=dice.choice((None, read)),
            cache_write=written,
            reasoning=dice.choice((None, output // 3)),
            # Only Anthropic has caches of an hour, and reports them.
            cache_write_1h=written // 3 if written and "claude" in model else None,
        )
        batch = number % 5 == 0
        cost = genai.cost(model, usage, batch=batch)
        assert cost is not None, model
        price = theirs(model, usage, batch=batch)
        assert abs(cost.total - price) <= USD("1e-9"), (model, usage)
        ours += cost.total
        expected += price
    assert len(set(MODELS)) == 20
    assert round(ours, 2) == round(expected, 2)
    assert ours > 100


@pytest.mark.parametrize(
    ("model", "provider", "per_mtok"),
    [
        ("text-embedding-3-small", "openai", "0.02"),
        ("text-embedding-3-small", "", "0.02"),
        ("embed-v4.0", "", "0.12"),
        ("llama-3.1-8b-instant", "groq", "0.05"),
        ("gpt-4o", "azure.ai.openai", "2.5"),
        # An OpenAI client that is pointed at another provider's host
        ("mistral-large-latest", "openai", "2"),
    ],
)
def test_models_are_found_that_their_name_alone_does_not_give_away(
    genai: Pricer, model: str, provider: str, per_mtok: str
) -> None:
    cost = genai.cost(model, Usage(1_000_000, 0), provider=provider)
    assert cost == Cost(USD(per_mtok), USD(0))


@pytest.mark.parametrize(
    ("attributes", "provider"),
    [
        ({"gen_ai.provider.name": "groq", "gen_ai.system": "openai"}, "groq"),
        ({"gen_ai.system": "aws.bedrock", "llm.system": "x"}, "aws.bedrock"),
        ({"llm.provider": "azure", "llm.system": "openai"}, "azure"),
        ({"llm.system": "openai"}, "openai"),
        ({"gen_ai.provider.name": "", "gen_ai.system": 3}, ""),
        ({}, ""),
    ],
)
def test_the_provider_is_read_in_every_spelling(
    attributes: dict[str, object], provider: str
) -> None:
    assert provider_of(attributes) == provider


@pytest.mark.parametrize("provider", ["", "openai", "nobody"])
def test_unknown_models_stay_unknown(genai: Pricer, provider: str) -> None:
    assert genai.cost("fake-model", MILLION, provider=provider) is None


def test_without_genai_prices_the_file_still_prices(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "genai_prices", None)
    path = tmp_path / "prices.toml"
    path.write_text("[models.gpt-4o]\ninput = 1\noutput = 2\n")
    pricer = load_pricer(str(path))
    assert pricer.cost("gpt-4o", MILLION) == Cost(USD(1), USD(2))
    assert pricer.cost("gpt-5", MILLION) is None
    assert pricer.price_version.startswith("file@")


def test_a_wrong_file_stops_the_start(tmp_path: Path) -> None:
    path = tmp_path / "prices.toml"
    path.write_text("[models.gpt-4o]\ninput = -1\n")
    with pytest.raises(ConfigError, match=r"line 2: models.gpt-4o.input = -1"):
        load_pricer(str(path))


def test_a_call_is_priced_twenty_times_as_fast_as_by_genai_prices(
    genai: Pricer,
) -> None:
    """5 us against 100: a ratio, in one process, the best of five rounds each."""
    usage = Usage(12_345, 678, cache_read=1_000, reasoning=100)
    genai.cost("gpt-5.4", usage)
    rounds = []
    for _ in range(5):
        start = time.process_time()
        for _ in range(100):
            theirs("gpt-5.4", usage, batch=False)
        middle = time.process_time()
        for _ in range(2_000):
            genai.cost("gpt-5.4", usage)
        rounds.append((middle - start, (time.process_time() - middle) / 20))
    assert min(b for _, b in rounds) * 20 < min(a for a, _ in rounds)


# The four forms in which one call's tokens are reported: subsets are never added.
D5 = {
    "openai": (
        {
            "gen_ai.usage.input_tokens": 100,
            "gen_ai.usage.output_tokens": 1_970,
            "gen_ai.usage.reasoning.output_tokens": 956,
        },
        "gpt-5",
        # 100 x 1.25 + 1970 x 10, per million: reasoning is inside, at no extra
        (Usage(100, 1_970, reasoning=956), "0.000125", "0.0197"),
    ),
    "anthropic": (
        {
            "gen_ai.usage.input_tokens": 19,
            "gen_ai.usage.output_tokens": 10,
            "gen_ai.usage.cache_read.input_tokens": 39_000,
        },
        "claude-sonnet-4-5",
        # 19 x 3 + 39000 x 0.30, and 10 x 15
        (Usage(39_019, 10, cache_read=39_000), "0.011757", "0.00015"),
    ),
    "langchain": (
        {
            "gen_ai.usage.input_tokens": 39_019,
            "gen_ai.usage.output_tokens": 10,
            "gen_ai.usage.cache_read.input_tokens": 39_000,
        },
        "claude-sonnet-4-5",
        (Usage(39_019, 10, cache_read=39_000), "0.011757", "0.00015"),
    ),
    "gemini": (
        {
            "gen_ai.usage.input_tokens": 100,
            "gen_ai.usage.output_tokens": 424,
            "gen_ai.usage.reasoning.output_tokens": 572,
        },
        "gemini-2.5-pro",
        # 100 x 1.25, and (424 + 572) x 10
        (Usage(100, 996, reasoning=572), "0.000125", "0.00996"),
    ),
}


@pytest.mark.parametrize("form", D5)
def test_d5_a_subset_is_priced_once_in_every_form_it_is_reported_in(
    genai: Pricer, form: str
) -> None:
    attributes, model, (usage, dollars_in, dollars_out) = D5[form]
    read = read_usage(attributes)
    assert read == usage
    assert genai.cost(model, read) == Cost(USD(dollars_in), USD(dollars_out))


def test_d5_both_forms_of_one_anthropic_call_cost_the_same(genai: Pricer) -> None:
    raw, through = (read_usage(D5[form][0]) for form in ("anthropic", "langchain"))
    assert raw is not None
    assert through is not None
    assert raw.total == through.total == 39_029
    model = "claude-sonnet-4-5"
    assert genai.cost(model, raw) == genai.cost(model, through)
