"""The user's price file: what it may say, and errors that point at the line."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hangup.errors import ConfigError
from hangup.spend import pricefile, tomllines
from hangup.spend.pricefile import PriceFile, read_price_file
from hangup.spend.pricing import Cost, Rates, ToolRates, cost
from hangup.spend.usage import Usage

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

USD = Decimal
MILLION = Usage(1_000_000, 1_000_000)

GOOD = """\
version = "contract of 2026-11"

[models.gpt-4o]
input = 2.50
output = 10
cache_read = 1.25
batch = { factor = 0.5 }

[models."gemini-2.5-pro*"]
input = 1.25
output = 10
cache_write = 2
cache_write_1h = 3
reasoning = 11
above = [
  { tokens = 500_000, output = 20 },
  { tokens = 200_000, input = 2.50, output = 15 },
]

[models."House/Summary"]
per_call = 0.004

[models.embed]
input = 0.02
batch = { input = 0.01 }

[tools.web_search]
per_call = 0.01

[tools."sandbox_*"]
per_call = 0.001
per_second = 0.0001
"""


@pytest.fixture
def read(tmp_path: Path) -> Callable[[str | bytes], PriceFile]:
    def read(text: str | bytes) -> PriceFile:
        path = tmp_path / "prices.toml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return read_price_file(str(path))

    return read


@pytest.fixture
def good(read: Callable[[str], PriceFile]) -> PriceFile:
    return read(GOOD)


def standard(file: PriceFile, model: str) -> Rates:
    price = file.model(model)
    assert price is not None
    return price.standard


def test_rates_are_read_as_they_are_written(good: PriceFile) -> None:
    assert standard(good, "gpt-4o") == Rates(
        USD("2.50"), USD(10), cache_read_per_mtok=USD("1.25")
    )


def test_the_example_in_the_documentation_is_a_price_file(
    read: Callable[[str], PriceFile],
) -> None:
    doc = pricefile.__doc__ or ""
    example = doc[doc.index("::\n") + 3 : doc.index("Names are compared")]
    file = read("\n".join(line[4:] for line in example.splitlines()))
    assert standard(file, "gemini-2.5-pro-latest").above[0][0] == 200_000
    assert file.tool("sandbox_python") == ToolRates(per_second=USD("0.0001"))


def test_long_context_rates_are_in_order_and_keep_what_they_leave_out(
    good: PriceFile,
) -> None:
    rates = standard(good, "gemini-2.5-pro")
    first, second = (
        Rates(
            USD("2.50"),
            USD(output),
            cache_write_per_mtok=USD(2),
            cache_write_1h_per_mtok=USD(3),
            reasoning_per_mtok=USD(11),
        )
        for output in (15, 20)
    )
    assert rates.above == ((200_000, first), (500_000, second))


def test_a_batch_factor_multiplies_every_rate(good: PriceFile) -> None:
    price = good.model("gpt-4o")
    assert price is not None
    assert price.batch == Rates(USD("1.25"), USD(5), cache_read_per_mtok=USD("0.625"))


def test_a_batch_factor_reaches_the_long_context_rates(
    read: Callable[[str], PriceFile],
) -> None:
    price = read(
        "[models.m]\ninput = 2\noutput = 4\nper_call = 1\nbatch = {factor = 0.5}\n"
        "above = [{tokens = 10, input = 6}]"
    ).model("m")
    assert price is not None
    assert cost(price.batch, Usage(10, 1_000_000)) == Cost(USD("0.50001"), USD(2))
    assert cost(price.batch, Usage(1_000_000, 0)) == Cost(USD("3.5"), USD(0))


def test_batch_rates_of_their_own_replace_only_what_they_name(
    read: Callable[[str], PriceFile],
) -> None:
    file = read("[models.m]\ninput = 2\noutput = 4\nbatch = {output = 1}")
    price = file.model("m")
    assert price is not None
    assert price.batch == Rates(USD(2), USD(1))


def test_without_batch_rates_a_batch_costs_what_any_call_does(
    good: PriceFile,
) -> None:
    price = good.model("house/summary")
    assert price is not None
    assert price.batch == price.standard


def test_a_price_per_call_alone_is_the_whole_price(good: PriceFile) -> None:
    rates = standard(good, "house/summary")
    assert cost(rates, Usage(1_000, 1_000)) == Cost(USD("0.004"), USD(0))


def test_a_model_without_output_rate_has_no_price_for_output(good: PriceFile) -> None:
    assert cost(standard(good, "embed"), Usage(1_000_000, 0)) == Cost(
        USD("0.02"), USD(0)
    )
    assert cost(standard(good, "embed"), Usage(1_000_000, 1)) is None


def test_a_model_may_be_free(read: Callable[[str], PriceFile]) -> None:
    file = read("[models.m]\ninput = 0.0\noutput = 0\n[tools.t]\nper_call = 0")
    assert cost(standard(file, "m"), MILLION) == Cost(USD(0), USD(0))
    assert file.tool("t") == ToolRates()


def test_exact_names_go_before_patterns_and_long_ones_before_short(
    read: Callable[[str], PriceFile],
) -> None:
    file = read(
        "\n".join(
            f'[models."{name}"]\ninput = {price}'
            for price, name in enumerate(("*", "gpt-*", "GPT-4o*", "gpt-4o"), 1)
        )
    )
    found = {
        model: int(standard(file, model).input_per_mtok)
        for model in ("gpt-4o", "Gpt-4O", "gpt-4o-mini", "gpt-5", "claude", "gpt")
    }
    assert found == {
        "gpt-4o": 4,
        "Gpt-4O": 4,
        "gpt-4o-mini": 3,
        "gpt-5": 2,
        "claude": 1,
        "gpt": 1,
    }


def test_tools_have_a_price_by_call_and_by_second(good: PriceFile) -> None:
    assert good.tool("web_search") == ToolRates(per_call=USD("0.01"))
    assert good.tool("sandbox_python") == ToolRates(USD("0.001"), USD("0.0001"))
    assert good.tool("web_searches") is None
    assert good.model("web_search") is None


def test_the_version_is_the_files_word_and_its_content(
    read: Callable[[str], PriceFile],
) -> None:
    one, other = read('version = "a"\n'), read('version = "a"\n# a comment\n')
    assert one.version.startswith("a@")
    assert one.version != other.version
    assert len(one.version) == len("a@") + 12
    assert read("").version.startswith("file@")


def test_windows_line_ends_and_a_byte_order_mark_are_no_fault(
    read: Callable[[bytes], PriceFile],
) -> None:
    file = read(b"\xef\xbb\xbf" + GOOD.replace("\n", "\r\n").encode())
    assert standard(file, "gpt-4o").input_per_mtok == USD("2.50")


# What stands in [models.m], its lines divided by |, and what is said about it.
BAD = [
    ("input = -1", 2, "models.m.input = -1", "give a number from 0 to 1000000"),
    ("input = nan", 2, "models.m.input = nan", "a number from 0 to"),
    ("input = inf", 2, "models.m.input = inf", "a number from 0 to"),
    ("input = -inf", 2, "models.m.input = -inf", "a number from 0 to"),
    ("input = 1e99999999999999999999", 2, "models.m.input", "a number from 0 to"),
    ("input = true", 2, "models.m.input = true", "a number from 0 to"),
    ("input = '2.5'", 2, "models.m.input = '2.5'", "without quotes"),
    ("input = 1000000.01", 2, "models.m.input", "a number from 0 to"),
    (f"input = {'9' * 400}", 2, "models.m.input = 999", "a number from 0 to"),
    ("input = [1]", 2, "models.m.input = [1]", "a number from 0 to"),
    ("input = 2026-11-30", 2, "models.m.input", "a number from 0 to"),
    ("input = 1|cached = 1", 3, "models.m.cached", "there are input, output, "),
    ("", 1, "models.m: give `input`", "or `per_call` alone"),
    ("output = 1", 1, "models.m: give `input`", "or `per_call` alone"),
    ("output = 1|per_call = 1", 1, "models.m: give `input`", "`per_call` alone"),
    ("input = 1|above = 3", 3, "models.m.above = 3", "give a list of tables"),
    ("input = 1|above = [3]", 3, "models.m.above[0] = 3", "a table of fields"),
    ("input = 1|above = [{tokens = 0}]", 3, ".above[0].tokens = 0", "above zero"),
    ("input = 1|above = [{tokens = 1.5}]", 3, ".above[0].tokens = 1.5", "above"),
    ("input = 1|above = [{tokens = true}]", 3, ".above[0].tokens = true", "above"),
    ("input = 1|above = [{tokens = 3}]", 3, ".above[0]", "give rates beside"),
    ("input = 1|above = [|{input = 1}]", 4, ".above[0]: give `tokens`", "above zero"),
    (
        "input = 1|above = [|{tokens = 1, input = 2},|{tokens = 2, input = -2},|]",
        5,
        "models.m.above[1].input = -2",
        "a number",
    ),
    (
        "input = 1|above = [{tokens = 7, input = 2},|{tokens = 7, input = 2}]",
        4,
        "models.m.above[1].tokens = 7",
        "every number once",
    ),
    ("input = 1|[[models.m.above]]|batch = 1", 4, ".above[0].batch", "no such field"),
    ("input = 1|batch = 0.5", 3, "models.m.batch = 0.5", "a table of fields"),
    ("input = 1|batch = {}", 3, "models.m.batch", "give a factor, or rates"),
    ("input = 1|batch = {factor = -0.5}", 3, "batch.factor = -0.5", "from 0 to 10"),
    ("input = 1|batch = {factor = 1|}", 3, "", "this is not TOML"),
    (
        "input = 1|[models.m.batch]|factor = 1|input = 1",
        4,
        "models.m.batch.factor",
        "not both",
    ),
    (
        "input = 1|above = [{tokens = 1, input = 2}]|batch = {input = 1}",
        4,
        "models.m.batch",
        "give `above` here too",
    ),
    ("input = 1|[models.M]", 3, "models.M", "every name once: m is the same"),
    ('input = 1|[models."a*b"]', 3, 'models."a*b"', "put * at the end"),
    ('input = 1|[models.""]', 3, 'models.""', "give a name"),
    ('input = 1|[models." *"]', 3, 'models." *"', "give a name"),
    ("input = 1|[tools.t]", 3, "tools.t", "give per_call, per_second or both"),
    ("input = 1|[tools.t]|hour = 1", 4, "tools.t.hour", "there are per_call, per_sec"),
    ("input = 1|[tools.t]|per_call = -1", 4, "tools.t.per_call = -1", "a number"),
    ("input = 1|[models.x", 3, "Expected", "this is not TOML"),
    ("input = 1|[models.m]", 3, "twice", "give every name once"),
    ("input = 1|input = 2", 3, "", "give every name once"),
    ("input = ", 2, "", "this is not TOML"),
    ('input = """|||', 2, "", "this is not TOML"),
]


@pytest.mark.parametrize(("text", "line", "field", "remedy"), BAD)
def test_an_error_names_the_line_the_field_and_the_remedy(
    read: Callable[[str], PriceFile], text: str, line: int, field: str, remedy: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        read(f"[models.m]|{text}".replace("|", "\n"))
    said = str(refused.value)
    assert f"prices.toml' cannot be used: line {line}: " in said
    assert field in said
    assert remedy in said
    assert said.startswith("HANGUP_PRICES=")


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("prices = 1", 1, "there are version, models, tools"),
        ("# mine\nversion = 3", 2, "version = 3: give one line"),
        ('version = ""', 1, "give one line"),
        ('version = "a\\nb"', 1, "give one line"),
        (f'version = "{"v" * 101}"', 1, "of at most 100 characters"),
        ("models = 3", 1, "models = 3: give a table"),
        ("\n[models]\nm = 3", 3, "models.m = 3: give a table"),
        ("[[tools]]\nper_call = 1", 1, "tools = [{"),
    ],
)
def test_the_top_of_the_file_is_checked_too(
    read: Callable[[str], PriceFile], text: str, line: int, says: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        read(text)
    assert f"line {line}: " in str(refused.value)
    assert says in str(refused.value)


def test_what_is_not_utf_8_is_refused_with_its_line(
    read: Callable[[bytes], PriceFile],
) -> None:
    with pytest.raises(ConfigError, match="line 2: save the file as UTF-8"):
        read(b'[models.m]\nversion = "\xff"\n')


def test_a_file_nested_without_end_is_refused(
    read: Callable[[str], PriceFile],
) -> None:
    with pytest.raises(ConfigError, match="line 1: "):
        read("x = " + "[" * 100_000)


@pytest.mark.parametrize("name", ["missing.toml", ".", "a\0b", "~nobody-here/p.toml"])
def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path, name: str) -> None:
    path = name if name.startswith("~") else f"{tmp_path}/{name}"
    with pytest.raises(ConfigError, match="give the path of a TOML file") as refused:
        read_price_file(path, "prices")
    assert refused.value.name == "prices"
    assert refused.value.value == path


names = st.from_regex(r"[a-z][a-z0-9-]{0,8}", fullmatch=True)


@given(
    st.dictionaries(names, st.decimals(0, 1000, places=4), min_size=1, max_size=8),
    st.data(),
)
def test_the_line_is_right_wherever_the_fault_is(
    prices: dict[str, Decimal], data: st.DataObject
) -> None:
    """In files with comments, blank lines, strings and arrays of several lines."""
    above = st.sampled_from(["", "# input = -1\n", '#"""\n', "\n\n"])
    inside = st.sampled_from(
        ["", "a = [ # ]\n]\n", 'a = """\n\n\n"""\n', "a = [\n{}]\n"]
    )
    bad = data.draw(st.sampled_from(sorted(prices)))
    text = 'version = """\\\n  v"""\n'
    expected = 0
    for name, price in prices.items():
        text += f'{data.draw(above)}[models."{name}"]\n{data.draw(inside)}'
        text += f"input = {'-1' if name == bad else price}\n"
        if name == bad:
            expected = text.count("\n")
    path = ("models", bad, "input")
    assert tomllines.line_of(text, path) == expected


def test_a_path_that_is_nowhere_is_on_the_last_line() -> None:
    assert tomllines.line_of("a = 1\nb = 2", ("c",)) == 2
    assert tomllines.line_of("a = [1]\nb = 2", ("a", 3)) == 2
