"""When the writing of an answer began, from how fast its model writes."""

from __future__ import annotations

import json

import pytest

from hangup.spend.meter import Meter, Provider
from hangup.spend.rates import Rates


def streamed(first: float, tokens: int, rate: float) -> Meter:
    """A stream of one token an event."""
    meter = Meter(Provider.OPENAI_CHAT, started_at=0.0)
    at = first
    for number in range(tokens):
        at = first + number / rate
        event: object = {"choices": [{"delta": {"content": "word "}}]}
        meter.feed(f"data: {json.dumps(event)}\n\n".encode(), at)
    usage = {"prompt_tokens": 1, "completion_tokens": tokens}
    event = {"choices": [], "usage": usage}
    meter.feed(f"data: {json.dumps(event)}\n\n".encode(), at)
    meter.close(at)
    return meter


def test_an_answer_began_as_long_before_its_end_as_it_takes_to_write() -> None:
    rates = Rates()
    rates.learn("m", streamed(1.0, 101, rate=50.0))
    assert rates.began("m", 100, took=5.0) == pytest.approx(3.0)


def test_it_never_began_before_it_was_asked_for() -> None:
    rates = Rates()
    rates.learn("m", streamed(1.0, 101, rate=50.0))
    assert rates.began("m", 1_000, took=5.0) == 0.0


def test_of_a_model_that_never_streamed_nothing_is_known() -> None:
    rates = Rates()
    rates.learn("m", streamed(1.0, 101, rate=50.0))
    assert rates.began("other", 100, took=5.0) is None


def test_a_few_tokens_teach_nothing() -> None:
    rates = Rates()
    rates.learn("m", streamed(1.0, 3, rate=50.0))
    assert rates.began("m", 100, took=5.0) is None


def test_the_latest_streams_count_most() -> None:
    rates = Rates()
    rates.learn("m", streamed(1.0, 101, rate=10.0))
    for _ in range(30):
        rates.learn("m", streamed(1.0, 101, rate=100.0))
    assert rates.began("m", 100, took=5.0) == pytest.approx(4.0, abs=0.01)


def test_the_models_remembered_are_bounded() -> None:
    rates = Rates()
    meter = streamed(1.0, 20, rate=50.0)
    for number in range(300):
        rates.learn(f"m{number}", meter)
    assert rates.began("m0", 10, took=5.0) is None
    assert rates.began("m299", 10, took=5.0) is not None
