"""Postings that are alike become one, and nothing is lost."""

from __future__ import annotations

from decimal import Decimal

from hypothesis import given
from hypothesis import strategies as st

from hangup.spend.fate import Basis, Fate
from hangup.spend.posting import Posting, Tally, Total, merged

counts = st.integers(0, 10_000)
postings = st.lists(
    st.builds(
        Posting,
        fate=st.sampled_from(Fate),
        kind=st.sampled_from(["inference", "tool"]),
        model=st.sampled_from(["a", "b"]),
        input=counts,
        output=counts,
        calls=st.integers(0, 1),
        seconds=st.integers(0, 100).map(float),
        basis=st.sampled_from(Basis),
        span_context=st.sampled_from(["one", "two", None]),
        cause=st.sampled_from(["none", "killed"]),
        usd=st.none() | st.integers(0, 10**9).map(lambda n: Decimal(n) / 10**10),
    ),
    max_size=20,
)


def labels(posting: Posting) -> tuple[object, ...]:
    fate, kind, model, *_, basis, _, cause, usd = posting
    return fate, kind, model, basis, cause, usd is None


def sums(of: list[Posting]) -> dict[object, Total]:
    tallies: dict[object, Tally] = {}
    for posting in of:
        tallies.setdefault(labels(posting), Tally()).add(posting)
    return {key: tally.total() for key, tally in tallies.items()}


@given(postings)
def test_merging_keeps_every_sum_and_every_label(many: list[Posting]) -> None:
    assert sums(merged(many)) == sums(many)


@given(postings)
def test_only_what_is_wasted_stays_apart(many: list[Posting]) -> None:
    few = merged(many)
    others = [labels(one) for one in few if one.fate is not Fate.WASTED]
    assert len(others) == len(set(others))
    assert [one for one in few if one.fate is Fate.WASTED] == [
        one for one in many if one.fate is Fate.WASTED
    ]
