"""Where text is all there is, the estimate is as good as it claims."""

from __future__ import annotations

import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hangup.spend.estimate import Tally, input_tokens, text_tokens

# Cut as the o200k and cl100k vocabularies cut it.
PROSE = re.findall(
    r" ?\w+|[^\w\s]",
    "When a user closes the browser tab, the server usually keeps working, because "
    "nothing tells it to stop. You can think of it like ordering a pizza and then "
    "leaving the house: the pizza still arrives, and you still pay for it. Here are "
    "three things you could do about that. First, watch the connection, so that you "
    "notice when somebody leaves.",
)


# Texts of several kinds, and how many tokens each is in the o200k vocabulary.
SAMPLES = {
    "prose": (
        (
            "If nobody is listening any more, there is little point in go"
            "ing on. A good assistant notices that its user has left, put"
            "s down what it was doing and tells you what it cost. It does"
            "n't take much: a deadline, a signal and somebody who reads t"
            "he bill at the end of the month."
        ),
        61,
    ),
    "markdown": (
        (
            "## What to do\n\n1. **Measure first.** Run `hangup doctor` and"
            " look at the *wasted* share.\n2. **Then enforce**, for 5 % of"
            " the traffic:\n   - set `HANGUP_MODE=refuse`;\n   - watch the "
            "error rate for a day or two.\n3. If nothing breaks, go on to "
            "the next 20 %.\n"
        ),
        81,
    ),
    "python": (
        (
            'def remaining(self, now: float) -> float:\n    """Return the '
            'seconds that are left, never negative."""\n    if self.limit '
            "is None:\n        return math.inf\n    return max(0.0, self.st"
            "art + self.limit - now)\n\n\nfor call in calls:\n    total += ca"
            'll.tokens\n    print(f"{call.name}: {total}")\n'
        ),
        72,
    ),
    "json": (
        (
            '{"city": "Paris", "country": "France", "days": [1, 2, 3], "f'
            'ilters": {"min_price": 100, "max_price": 250, "stars": 4}, "'
            'query": "quiet hotel near the river"}'
        ),
        57,
    ),
    "french": (
        (
            "Quand l'utilisateur ferme la page, le serveur continue souve"
            "nt de travailler, parce que rien ne lui dit de s'arrêter. Il"
            " faut donc surveiller la connexion et donner à chaque demand"
            "e un délai."
        ),
        40,
    ),
    "german": (
        (
            "Wenn der Benutzer die Seite schließt, arbeitet der Server me"
            "ist weiter, weil ihm niemand sagt, dass er aufhören soll. Ma"
            "n muss also die Verbindung beobachten und jeder Anfrage eine"
            " Frist geben."
        ),
        40,
    ),
    "chinese": (
        (
            "当用户关闭页面时服务器往往会继续工作因为没有人告诉它停下来因"
            "此需要监视连接并给每个请求设定期限"
        ),
        31,
    ),
}


def estimate(pieces: list[str]) -> float:
    tally = Tally()
    for piece in pieces:
        tally.add(piece.encode())
    return tally.tokens


def test_one_token_a_delta_is_counted_exactly() -> None:
    assert estimate(PROSE) == len(PROSE)
    assert estimate(PROSE[:40]) == 40


@pytest.mark.parametrize("most", [2, 3, 8, 30])
def test_several_tokens_a_delta_are_within_15_percent(most: int) -> None:
    rng = random.Random(most)  # noqa: S311  a seed, not a secret
    total = truth = 0.0
    for _ in range(50):
        at, pieces = 0, []
        while at < len(PROSE):
            count = rng.randint(1, most)
            pieces.append("".join(PROSE[at : at + count]))
            at += count
        total += estimate(pieces)
        truth += len(PROSE)
    assert total == pytest.approx(truth, rel=0.15)


def test_words_are_a_floor_where_they_are_short() -> None:
    assert estimate(["a b c d "] * 20) == 80


def test_white_space_is_one_token_however_long() -> None:
    assert estimate([" " * 40, "\n\n"]) == 2


@pytest.mark.parametrize("kind", SAMPLES)
@pytest.mark.parametrize("most", [4, 8, 30])
def test_text_of_every_kind_is_near_what_the_vocabulary_makes_of_it(
    kind: str, most: int
) -> None:
    """Within 15 %; where signs or wide characters are dense, within 20 %."""
    text, truth = SAMPLES[kind]
    within = 0.2 if kind in {"markdown", "chinese"} else 0.15
    words = re.findall(r"\s*\S+|\s+$", text)
    rng = random.Random(most)  # noqa: S311  a seed, not a secret
    total = 0.0
    for _ in range(50):
        at, pieces = 0, []
        while at < len(words):
            count = rng.randint(2, most)
            pieces.append("".join(words[at : at + count]))
            at += count
        total += estimate(pieces)
    assert total / 50 == pytest.approx(truth, rel=within)
    assert text_tokens(text) == pytest.approx(truth, rel=within)


@given(st.lists(st.binary(max_size=40), max_size=30))
def test_every_delta_is_at_least_one_token_and_none_takes_any_back(
    pieces: list[bytes],
) -> None:
    tally = Tally()
    single = grouped = 0.0
    for piece in pieces:
        tally.add(piece)
        # Sums of fractions: right to the last bits but those.
        assert tally.single >= single + bool(piece) - 1e-9
        assert tally.grouped >= grouped + bool(piece) - 1e-9
        single, grouped = tally.single, tally.grouped
    assert tally.deltas == sum(map(bool, pieces))
    assert tally.tokens in {single, grouped}


def test_the_input_is_all_texts_of_the_prompt_and_none_of_its_media() -> None:
    words = "some words of a prompt that is sent " * 10
    image = {"type": "image_url", "image_url": {"url": "data:" + "A" * 90_000}}
    content = [{"type": "text", "text": words}, image]
    plain = input_tokens({"messages": [{"role": "user", "content": words}]})
    assert plain == pytest.approx(85, rel=0.15)
    assert input_tokens({"messages": [{"role": "user", "content": content}]}) == plain
    assert input_tokens({"system": words, "input": words}) == pytest.approx(
        160, rel=0.15
    )
    assert input_tokens({"model": "m"}) is None


def test_tools_are_input_too() -> None:
    prompt = {"input": "hi"}
    tools = [{"name": "search", "parameters": {"properties": {"query": {}}}}]
    alone, beside = input_tokens(prompt), input_tokens({**prompt, "tools": tools})
    assert alone is not None
    assert beside is not None
    assert beside > alone + 5


def test_a_request_nested_beyond_reason_is_no_error() -> None:
    nested: list[object] = []
    for _ in range(5_000):
        nested = [nested]
    assert input_tokens({"messages": nested}) is not None
