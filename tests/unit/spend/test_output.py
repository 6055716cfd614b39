"""Words that are counted in a hurry are known as well as all that came at leisure."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hangup.spend.output import Output
from hangup.spend.timeline import Timeline

WORD = b" word"
PROSE = b"three words here, and a sign."
STEPS = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from(["word", "text", "report", "ask"])),
    max_size=120,
)


def _output(most: int) -> Output:
    output = Output()
    output._timeline = Timeline(most)
    output.add(WORD)  # the first is never counted as a word: it opens the timeline
    assert output.mark(0.0)
    return output


@given(STEPS, st.integers(2, 7))
def test_a_word_counts_and_is_dated_as_any_text_of_one_token(
    steps: list[tuple[int, str]], most: int
) -> None:
    hurried, careful = _output(most), _output(most)
    now, said = 0.0, 0.0
    for wait, what in steps:
        now += wait
        if what == "word":
            hurried.word(now)
            careful.add(WORD)
            assert careful.mark(now)
        elif what == "ask":
            assert hurried.before(now) == careful.before(now)
        else:
            hurried.catch_up()
            if what == "report":
                said = max(said, careful.single + 1)
                assert hurried.report(now, said) == careful.report(now, said)
            else:
                for output in (hurried, careful):
                    output.add(PROSE)
                    assert output.mark(now)
        assert hurried.estimates == careful.estimates
        assert hurried.last_at == careful.last_at
    assert hurried.moments() == careful.moments()
    assert hurried.stride == careful.stride
    for half in range(int(2 * now) + 2):
        assert hurried.before(half / 2) == careful.before(half / 2)


def test_thoughts_are_part_of_the_output() -> None:
    output = Output()
    output.think(WORD)
    output.add(WORD)
    assert (output.deltas, output.thoughts.deltas) == (2, 1)
    assert not Output().mark(1.0)
