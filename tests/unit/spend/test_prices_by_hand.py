"""Ten calls priced with pencil and paper, from the providers' own price pages.

Dollars per million tokens, as published in the course of 2026:

- OpenAI, developers.openai.com/api/docs/pricing: GPT-5 1.25, cached 0.125, output 10,
  in a batch half of each; GPT-4o 2.50, cached 1.25, output 10; GPT-5.4 2.50, output 15,
  and of prompts beyond 272,000 tokens twice the input and 1.5 times the output;
  text-embedding-3-small 0.02.
- Anthropic, platform.claude.com/docs/en/about-claude/pricing: Opus 4.5 input 5, cache
  write 6.25 (5 minutes) or 10 (1 hour), cache read 0.50, output 25; Haiku 4.5 1, 1.25,
  2, 0.10 and 5; batches half of all.
- Google, ai.google.dev/gemini-api/docs/pricing: Gemini 2.5 Pro 1.25, cached 0.125,
  output with thoughts 10; of prompts beyond 200,000 tokens 2.50, 0.25 and 15.
- Perplexity, docs.perplexity.ai, pricing: Sonar 1 and 1, and 5 dollars for 1,000
  requests with little search context.
"""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING

import pytest

from hangup.otel.prices import load_pricer
from hangup.spend.usage import Usage

if TYPE_CHECKING:
    from pathlib import Path

    from hangup.spend.pricer import Pricer

# What a price list of all models cannot know: how much was searched.
OWN = """
[models.sonar]
input = 1
output = 1
per_call = 0.005
"""


@pytest.fixture(scope="module")
def pricer(tmp_path_factory: pytest.TempPathFactory) -> Pricer:
    path: Path = tmp_path_factory.mktemp("prices") / "prices.toml"
    path.write_text(OWN)
    return load_pricer(str(path))


def dollars(pricer: Pricer, model: str, usage: Usage, *, batch: bool = False) -> str:
    cost = pricer.cost(model, usage, batch=batch)
    assert cost is not None
    return str(cost.total.normalize())


def test_1_cached_input_costs_half_at_gpt_4o(pricer: Pricer) -> None:
    # 10,000 tokens in, 8,000 of them cached:
    #   2,000 x 2.50 =  5,000
    #   8,000 x 1.25 = 10,000
    # 500 out x 10.00 =  5,000     20,000 / 1,000,000
    usage = Usage(10_000, 500, cache_read=8_000)
    assert dollars(pricer, "gpt-4o", usage) == "0.02"


def test_2_reasoning_is_output_and_paid_once_at_gpt_5(pricer: Pricer) -> None:
    # 1,200 in x 1.25 = 1,500;  4,000 out x 10 = 40,000, the 3,700 of reasoning inside
    usage = Usage(1_200, 4_000, reasoning=3_700)
    assert dollars(pricer, "gpt-5", usage) == "0.0415"


def test_3_a_batch_costs_half_at_gpt_5(pricer: Pricer) -> None:
    # 80,000 in x 0.625 = 50,000;  10,000 out x 5 = 50,000
    usage = Usage(80_000, 10_000)
    assert dollars(pricer, "gpt-5", usage, batch=True) == "0.1"
    assert dollars(pricer, "gpt-5", usage) == "0.2"


def test_4_a_long_prompt_moves_the_whole_call_to_other_rates_at_gpt_5_4(
    pricer: Pricer,
) -> None:
    # 272,000 in x 2.50 = 680,000;  1,000 out x 15.00 = 15,000
    assert dollars(pricer, "gpt-5.4", Usage(272_000, 1_000)) == "0.695"
    # 272,001 in x 5.00 = 1,360,005;  1,000 out x 22.50 = 22,500
    assert dollars(pricer, "gpt-5.4", Usage(272_001, 1_000)) == "1.382505"


def test_5_embeddings_cost_their_input(pricer: Pricer) -> None:
    # 250,000 x 0.02 = 5,000
    assert dollars(pricer, "text-embedding-3-small", Usage(250_000, 0)) == "0.005"
    assert dollars(pricer, "text-embedding-3-small", Usage(250_000, None)) == "0.005"


def test_6_a_cache_of_five_minutes_is_written_and_read_at_opus_4_5(
    pricer: Pricer,
) -> None:
    # The first call writes 40,000 to the cache, and has 100 beside them:
    #   100 x 5 = 500;  40,000 x 6.25 = 250,000;  200 out x 25 = 5,000
    first = Usage(40_100, 200, cache_read=0, cache_write=40_000)
    assert dollars(pricer, "claude-opus-4-5", first) == "0.2555"
    # The second one reads them:
    #   100 x 5 = 500;  40,000 x 0.50 = 20,000;  200 out x 25 = 5,000
    second = Usage(40_100, 200, cache_read=40_000, cache_write=0)
    assert dollars(pricer, "claude-opus-4-5", second) == "0.0255"


def test_7_a_cache_of_an_hour_is_dearer_at_opus_4_5(pricer: Pricer) -> None:
    # 100 x 5 = 500;  10,000 x 6.25 = 62,500;  30,000 x 10 = 300,000
    # 200 out x 25 = 5,000
    usage = Usage(40_100, 200, cache_write=40_000, cache_write_1h=30_000)
    assert dollars(pricer, "claude-opus-4-5", usage) == "0.368"
    # In a batch half of it
    assert dollars(pricer, "claude-opus-4-5", usage, batch=True) == "0.184"


def test_8_the_batch_discount_reaches_the_cache_at_haiku_4_5(pricer: Pricer) -> None:
    # Half of 1, 1.25, 0.10 and 5:
    #   6,000 x 0.50 = 3,000;  2,000 x 0.625 = 1,250;  12,000 x 0.05 = 600
    #   400 out x 2.50 = 1,000
    usage = Usage(20_000, 400, cache_read=12_000, cache_write=2_000)
    assert dollars(pricer, "claude-haiku-4-5", usage, batch=True) == "0.00585"


def test_9_thoughts_and_a_long_cached_prompt_at_gemini_2_5_pro(pricer: Pricer) -> None:
    # 11,500 in, 10,000 of them cached: 1,500 x 1.25 = 1,875; 10,000 x 0.125 = 1,250
    # 1,000 of text and 10,000 of thoughts: 11,000 x 10 = 110,000
    short = Usage(11_500, 11_000, cache_read=10_000, reasoning=10_000)
    assert dollars(pricer, "gemini-2.5-pro", short) == "0.113125"
    # 300,000 in, 250,000 of them cached: 50,000 x 2.50 = 125,000;
    # 250,000 x 0.25 = 62,500;  2,000 out x 15 = 30,000
    long = Usage(300_000, 2_000, cache_read=250_000)
    assert dollars(pricer, "gemini-2.5-pro", long) == "0.2175"


def test_10_a_search_has_a_price_by_the_call_beside_its_tokens(pricer: Pricer) -> None:
    # 200 in x 1 = 200;  800 out x 1 = 800: 0.001 dollars;  and 5 / 1,000 for the call
    cost = pricer.cost("sonar", Usage(200, 800))
    assert cost is not None
    assert cost.total == Decimal("0.006")
    # The price of the call is committed when it starts.
    assert cost.input == Decimal("0.0052")
