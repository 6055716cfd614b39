"""What others say a call cost: bills and calculations, and never a wrong reading."""

from __future__ import annotations

import math
from decimal import Context, Decimal, Inexact, localcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hangup.spend.reported import billed, billed_in_header, calculated

USD = Decimal


def test_openrouter_bills_in_credits_of_a_dollar() -> None:
    usage = {
        "prompt_tokens": 194,
        "completion_tokens": 2,
        "cost": 0.95,
        "cost_details": {"upstream_inference_cost": 19},
    }
    assert billed(usage) == USD("0.95")


def test_with_a_key_of_the_callers_own_the_bill_is_fee_and_upstream() -> None:
    details = {"upstream_inference_cost": 0.0412}
    usage = {"cost": 0.00206, "is_byok": True, "cost_details": details}
    assert billed(usage) == USD("0.04326")
    assert billed({**usage, "is_byok": False}) == USD("0.00206")


@pytest.mark.parametrize("details", [None, {}, {"upstream_inference_cost": None}, 3])
def test_a_fee_alone_is_no_bill(details: object) -> None:
    assert billed({"cost": 0.001, "is_byok": True, "cost_details": details}) is None


def test_perplexity_bills_a_total() -> None:
    cost = {"input_tokens_cost": 0.001, "request_cost": 0.005, "total_cost": 0.006}
    assert billed({"cost": cost}) == USD("0.006")
    assert billed({"cost": {}}) is None


def test_xai_bills_ticks_of_which_ten_billion_are_a_dollar() -> None:
    assert billed({"cost_in_usd_ticks": 37_756_000}) == USD("0.0037756")
    assert billed({"cost_in_usd_ticks": 0}) == 0


def test_a_free_call_is_billed_nothing_and_most_usage_holds_no_bill() -> None:
    assert billed({"cost": 0}) == 0
    assert billed({"prompt_tokens": 1, "completion_tokens": 2}) is None


def test_a_litellm_proxy_bills_in_a_header_and_says_zero_for_unknown() -> None:
    assert billed_in_header({"x-litellm-response-cost": "0.00045"}) == USD("0.00045")
    for said in (
        {},
        {"x-litellm-response-cost": "0.0"},
        {"x-litellm-response-cost": ""},
    ):
        assert billed_in_header(said) is None


@pytest.mark.parametrize(
    "name",
    [
        "gen_ai.usage.cost",
        "gen_ai.usage.cost_usd",
        "gen_ai.usage.total_cost",
        "gen_ai.usage.cost.total",
        "gen_ai.cost.total_cost",
        "litellm.cost.total",
        "llm.cost.total",
        "llm.usage.total_cost",
        "operation.cost",
    ],
)
def test_every_spelling_of_a_calculation_is_read(name: str) -> None:
    assert calculated({"gen_ai.usage.input_tokens": 5, name: 0.1}) == USD("0.1")


def test_a_calculation_of_zero_says_nothing_and_hides_no_other() -> None:
    assert calculated({"gen_ai.usage.cost": 0.0}) is None
    assert calculated({"gen_ai.usage.cost": 0, "operation.cost": "2"}) == 2
    assert calculated({}) is None


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        -0.01,
        math.nan,
        math.inf,
        "dear",
        "",
        1_000_001,
        10**400,
        [0.1],
        b"1",
        Decimal("sNaN"),
        "1e999999999999999999999",
    ],
    ids=lambda value: repr(value)[:12],
)
def test_what_is_no_amount_is_no_bill(value: object) -> None:
    assert billed({"cost": value}) is None
    assert billed({"cost": {"total_cost": value}}) is None
    assert calculated({"operation.cost": value}) is None


@pytest.mark.parametrize("ticks", [None, True, -1, math.nan, 10**17, "many"])
def test_what_are_no_ticks_are_no_bill(ticks: object) -> None:
    assert billed({"cost_in_usd_ticks": ticks}) is None


@given(
    st.dictionaries(
        st.sampled_from(
            ["cost", "cost_details", "is_byok", "cost_in_usd_ticks", "operation.cost"]
        ),
        st.recursive(
            st.none()
            | st.booleans()
            | st.integers()
            | st.floats()
            | st.text(max_size=6)
            | st.decimals(),
            lambda inner: st.dictionaries(
                st.sampled_from(["total_cost", "upstream_inference_cost"]), inner
            ),
            max_leaves=4,
        ),
    )
)
def test_nothing_raises_and_what_is_read_is_an_amount(usage: dict[str, object]) -> None:
    with localcontext(Context(prec=2, traps=[Inexact])):
        for amount in (billed(usage), calculated(usage)):
            assert amount is None or (amount.is_finite() and amount >= 0)
