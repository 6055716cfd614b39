"""What pricing a call costs, beside genai-prices for the same calls.

    python tests/benchmarks/pricing.py [--json] [--rounds N]

Method. In one process, after every model was priced once: rounds of 1,000 calls over 20
models, ours and theirs in turn, in CPU time with the garbage collector off. Reported
is the best round of each side, which is the one that nothing else disturbed, and the
median of the ratios of the rounds. The goal is 5 us a call; the exit status is 0
whether or not it is met.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
from decimal import Decimal
from typing import TYPE_CHECKING

import genai_prices

from hangup.otel.prices import load_pricer
from hangup.spend.usage import Usage

if TYPE_CHECKING:
    from collections.abc import Callable

GOAL_US = 5.0
CALLS = 1_000
MODELS = (
    *("gpt-4o", "gpt-4o-mini", "gpt-4.1", "gpt-5", "gpt-5-mini", "gpt-5.4", "o3"),
    *("claude-sonnet-4-5", "claude-haiku-4-5", "claude-opus-4-5", "claude-opus-4-6"),
    *("gemini-2.5-pro", "gemini-2.5-flash", "gemini-3-pro-preview"),
    *("mistral-large-latest", "grok-4", "command-r-plus", "deepseek-chat"),
    *("voyage-3", "kimi-k2"),
)
USAGES = tuple(
    Usage(1_000 * n, 70 * n, cache_read=500 * n, reasoning=30 * n) for n in range(1, 51)
)


def timed(price: Callable[[str, Usage], object]) -> float:
    """Return the CPU time of one call, in microseconds."""
    start = time.process_time()
    for usage in USAGES:
        for model in MODELS:
            price(model, usage)
    return (time.process_time() - start) / CALLS * 1e6


def theirs(model: str, usage: Usage) -> object:
    counts = genai_prices.Usage(
        input_tokens=usage.input,
        output_tokens=usage.output,
        cache_read_tokens=usage.cache_read,
    )
    return genai_prices.calc_price(counts, model)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()

    pricer = load_pricer()
    bill = Decimal("0.0123")
    cases: dict[str, Callable[[str, Usage], object]] = {
        "listed": pricer.cost,
        "billed": lambda model, usage: pricer.cost(model, usage, reported=bill),
        "genai-prices": theirs,
    }
    for price in cases.values():
        timed(price)  # every model is looked up once
    gc.disable()
    rounds = [
        {name: timed(price) for name, price in cases.items()}
        for _ in range(options.rounds)
    ]
    best = {name: min(each[name] for each in rounds) for name in cases}
    ratio = statistics.median(each["listed"] / each["genai-prices"] for each in rounds)
    if options.json:
        print(json.dumps({"us": best, "ratio": ratio, "goal_us": GOAL_US}))
        return
    for name, us in best.items():
        print(f"{name:14} {us:8.2f} us a call")
    verdict = "met" if best["listed"] < GOAL_US else "MISSED"
    print(
        f"listed is {ratio:.3f} of genai-prices; goal {GOAL_US:g} us a call: {verdict}"
    )


if __name__ == "__main__":
    main()
