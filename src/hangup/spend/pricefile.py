"""The user's own prices, from the TOML file that ``HANGUP_PRICES`` names.

::

    version = "contract of 2026-11"         # shown with every dollar it priced

    [models.gpt-4o]                         # dollars per million tokens
    input = 2.50
    output = 10
    cache_read = 1.25                       # without it: as input; also cache_write
                                            # (and cache_write_1h, if that differs)
    batch = { factor = 0.5 }                # or rates of its own: { input = 1, ... }

    [models."gemini-2.5-pro*"]              # every model whose name begins so
    input = 1.25
    output = 10                             # also reasoning; without it: as output
    above = [{ tokens = 200_000, input = 2.50, output = 15 }]

    [models.text-embedding-3-small]
    input = 0.02                            # no output: calls with some have no price

    [models."house/summary"]
    per_call = 0.004                        # alone, or beside rates for tokens

    [tools.web_search]
    per_call = 0.01

    [tools."sandbox_*"]
    per_second = 0.0001

Names are compared without regard to case. An exact name goes before a pattern, and of
patterns the longest. Input beyond ``tokens`` moves the whole call to the rates of that
entry; what it leaves out stays as it is below. A batch call of a model without
``batch`` costs what any other does.
"""

from __future__ import annotations

import hashlib
import tomllib
from dataclasses import dataclass
from decimal import Context, Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from hangup.errors import ConfigError
from hangup.spend import tomllines
from hangup.spend.pricing import Rates, ToolRates

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_Priced = TypeVar("_Priced")

# A dollar a token: more is a slip of the unit. It also keeps the products finite.
_MOST_USD = Decimal(1_000_000)
_MOST_VERSION = 100
_QUIET = Context(prec=50, traps=[])
_RATES = (
    *("input", "output", "cache_read", "cache_write", "cache_write_1h"),
    *("reasoning", "per_call"),
)
_TOP = ("version", "models", "tools")
_MODEL = (*_RATES, "above", "batch")
_TIER = ("tokens", *_RATES)
_BATCH = ("factor", *_RATES, "above")
_TOOL = ("per_call", "per_second")


class _Names(Generic[_Priced]):
    """What is priced, by exact name or by the longest prefix."""

    __slots__ = ("_exact", "_prefixes")

    def __init__(self, entries: Mapping[str, _Priced]) -> None:
        self._exact = {k: v for k, v in entries.items() if not k.endswith("*")}
        prefixes = [(k[:-1], v) for k, v in entries.items() if k.endswith("*")]
        self._prefixes = sorted(prefixes, key=lambda entry: -len(entry[0]))

    def find(self, name: str) -> _Priced | None:
        name = name.lower()
        found = self._exact.get(name)
        if found is not None:
            return found
        for prefix, priced in self._prefixes:
            if name.startswith(prefix):
                return priced
        return None


@dataclass(frozen=True, slots=True)
class ModelPrice:
    """The rates of one model. Immutable.

    Attributes:
        standard: Of an ordinary call.
        batch: Of one that was sent through the provider's batch service.
    """

    standard: Rates
    batch: Rates


class PriceFile:
    """The prices of one file, checked. Immutable, thread-safe.

    Attributes:
        version: What the file calls itself, or "file", and ``@`` with the first 12
            digits of the SHA-256 of its content: ``contract@1f3a9c2e77b0``.
    """

    __slots__ = ("_models", "_tools", "version")

    def __init__(
        self,
        version: str,
        models: Mapping[str, ModelPrice],
        tools: Mapping[str, ToolRates],
    ) -> None:
        self.version: str = version
        self._models = _Names(models)
        self._tools = _Names(tools)

    def model(self, name: str) -> ModelPrice | None:
        """Return the price of a model; None when the file has none."""
        return self._models.find(name)

    def tool(self, name: str) -> ToolRates | None:
        """Return the price of a tool; None when the file has none."""
        return self._tools.find(name)


def read_price_file(path: str, setting: str = "HANGUP_PRICES") -> PriceFile:
    """Read a price file, whole and at once. Blocks; for start-up.

    Args:
        path: Of the file; ``~`` is the home directory.
        setting: Which setting named it, for the error.

    Raises:
        ConfigError: The file cannot be read or holds anything that is not understood;
            names the file, the line, the field and what is allowed there.
    """
    try:
        content = Path(path).expanduser().read_bytes()
    except (OSError, RuntimeError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(
            setting, path, f"give the path of a TOML file with prices ({reason})"
        ) from None
    return _Reader(setting, path, content).read()


class _Reader:
    def __init__(self, setting: str, path: str, content: bytes) -> None:
        self._setting = setting
        self._path = path
        self._content = content
        self._text = ""

    def read(self) -> PriceFile:
        document = self._parse()
        self._allow(document, (), _TOP)
        named = document.get("version", "file")
        if not (
            isinstance(named, str)
            and 0 < len(named) <= _MOST_VERSION
            and named.isprintable()
        ):
            text = f"give one line of at most {_MOST_VERSION} characters"
            raise self._error(("version",), text, named)
        digest = hashlib.sha256(self._content).hexdigest()[:12]
        return PriceFile(
            f"{named}@{digest}",
            {name: self._model(entry, at) for name, entry, at in self._of("models")},
            {name: self._tool(entry, at) for name, entry, at in self._of("tools")},
        )

    def _parse(self) -> dict[str, Any]:
        try:
            # A byte order mark is an editor's habit; TOML does not know it.
            self._text = self._content.decode("utf-8-sig").replace("\r\n", "\n")
            self._document = tomllib.loads(self._text, parse_float=_decimal)
        except UnicodeDecodeError as error:
            line = self._content.count(b"\n", 0, error.start) + 1
            raise self._refuse(line, "save the file as UTF-8") from None
        except tomllib.TOMLDecodeError as error:
            line = tomllines.line_of_error(self._text, error)
            said = str(error)
            if said.startswith(("Cannot declare", "Cannot overwrite")):
                said = f"give every name once: {said}"
            raise self._refuse(line, f"this is not TOML: {said}") from None
        except RecursionError:
            raise self._refuse(1, "this is nested too deeply") from None
        return self._document

    def _of(self, table: str) -> Iterable[tuple[str, Any, tuple[str, str]]]:
        """Yield every entry of a table under its name in lower case."""
        entries = self._table(self._document.get(table, {}), (table,))
        names: dict[str, str] = {}
        for given, entry in entries.items():
            at = (table, given)
            name = given.lower()
            if not name.strip("* ") and name != "*":
                raise self._error(at, "give a name, or a beginning and *")
            if "*" in name[:-1]:
                raise self._error(at, "put * at the end, or nowhere")
            if name in names:
                text = f"give every name once: {names[name]} is the same"
                raise self._error(at, text)
            names[name] = given
            yield name, entry, at

    def _model(self, entry: object, at: tuple[str, ...]) -> ModelPrice:
        table = self._table(entry, at)
        self._allow(table, at, _MODEL)
        standard = self._rates(table, at)
        if "batch" not in table:
            return ModelPrice(standard, standard)
        at = (*at, "batch")
        batch = self._table(table["batch"], at)
        self._allow(batch, at, _BATCH)
        if "factor" not in batch:
            if not batch:
                raise self._error(at, "give a factor, or rates")
            if standard.above and "above" not in batch:
                text = "the model has long-context rates: give `above` here too, or"
                raise self._error(at, f"{text} a factor alone")
            return ModelPrice(standard, self._rates(batch, at, standard))
        if len(batch) > 1:
            raise self._error((*at, "factor"), "give a factor or rates, not both")
        factor = self._number(batch["factor"], (*at, "factor"), Decimal(10))
        return ModelPrice(standard, standard.times(factor))

    def _rates(
        self,
        table: dict[str, Any],
        at: tuple[str | int, ...],
        like: Rates | None = None,
    ) -> Rates:
        """Read rates; those that are left out are like the other ones."""
        given = {
            name: self._number(table[name], (*at, name), _MOST_USD)
            for name in _RATES
            if name in table
        }
        if like is not None:
            rates = _laid_over(like, given)
        elif given.keys() == {"per_call"}:
            rates = Rates(Decimal(0), Decimal(0), per_call=given["per_call"])
        elif "input" in given:
            rates = _laid_over(Rates(Decimal(0)), given)
        else:
            text = "give `input`, dollars per million tokens, or `per_call` alone"
            raise self._error(at, text)
        return self._with_tiers(rates, table.get("above", []), (*at, "above"))

    def _with_tiers(
        self, rates: Rates, tiers: object, at: tuple[str | int, ...]
    ) -> Rates:
        if not isinstance(tiers, list):
            raise self._error(
                at, "give a list of tables: [{ tokens = ..., ... }]", tiers
            )
        bands: dict[int, dict[str, Decimal]] = {}
        for index, entry in enumerate(tiers):
            here = (*at, index)
            table = self._table(entry, here)
            self._allow(table, here, _TIER)
            start = table.get("tokens")
            if type(start) is not int or not 0 < start < 2**53:
                at_tokens = (*here, "tokens") if "tokens" in table else here
                text = "give `tokens`, a whole number above zero"
                raise self._error(at_tokens, text, start)
            if start in bands:
                raise self._error((*here, "tokens"), "give every number once", start)
            bands[start] = {
                name: self._number(table[name], (*here, name), _MOST_USD)
                for name in _RATES
                if name in table
            }
            if not bands[start]:
                raise self._error(here, "give rates beside `tokens`")
        above: list[tuple[int, Rates]] = []
        for start, given in sorted(bands.items()):
            above.append((start, _laid_over(above[-1][1] if above else rates, given)))
        return _laid_over(rates, {}, tuple(above))

    def _tool(self, entry: object, at: tuple[str, ...]) -> ToolRates:
        table = self._table(entry, at)
        self._allow(table, at, _TOOL)
        if not table:
            raise self._error(at, "give per_call, per_second or both")
        return ToolRates(
            **{k: self._number(v, (*at, k), _MOST_USD) for k, v in table.items()}
        )

    def _table(self, value: object, at: tuple[str | int, ...]) -> dict[str, Any]:
        if isinstance(value, dict):
            return value
        raise self._error(at, "give a table of fields here", value)

    def _allow(
        self, table: dict[str, Any], at: tuple[str | int, ...], allowed: tuple[str, ...]
    ) -> None:
        for name in table:
            if name not in allowed:
                text = f"no such field; there are {', '.join(allowed)}"
                raise self._error((*at, name), text)

    def _number(
        self, value: object, at: tuple[str | int, ...], most: Decimal
    ) -> Decimal:
        if not isinstance(value, bool) and isinstance(value, (int, Decimal)):
            if isinstance(value, Decimal) or 0 <= value <= most:
                amount = Decimal(value)
                if amount.is_finite() and 0 <= amount <= most:
                    return amount
        elif isinstance(value, str):
            raise self._error(at, "give a number, without quotes", value)
        raise self._error(at, f"give a number from 0 to {most}", value)

    def _error(
        self, at: tuple[str | int, ...], remedy: str, value: object = None
    ) -> ConfigError:
        shown = "" if value is None else f" = {_shown(value)}"
        line = tomllines.line_of(self._text, at)
        return self._refuse(line, f"{_dotted(at)}{shown}: {remedy}")

    def _refuse(self, line: int, text: str) -> ConfigError:
        return ConfigError(self._setting, self._path, f"line {line}: {text}")


def _laid_over(
    rates: Rates,
    given: Mapping[str, Decimal],
    above: tuple[tuple[int, Rates], ...] = (),
) -> Rates:
    """Return rates with some of them replaced, and these tiers."""
    return Rates(
        given.get("input", rates.input_per_mtok),
        given.get("output", rates.output_per_mtok),
        given.get("cache_read", rates.cache_read_per_mtok),
        given.get("cache_write", rates.cache_write_per_mtok),
        given.get("reasoning", rates.reasoning_per_mtok),
        given.get("per_call", rates.per_call),
        above,
        given.get("cache_write_1h", rates.cache_write_1h_per_mtok),
    )


def _decimal(text: str) -> Decimal:
    return Decimal(text, _QUIET)  # NaN for an exponent out of all bounds


def _dotted(at: tuple[str | int, ...]) -> str:
    """Write a path as TOML would: models."gpt-4.1".above[0].input."""
    text = ""
    for step in at:
        if isinstance(step, int):
            text += f"[{step}]"
            continue
        bare = step.replace("-", "").replace("_", "")
        plain = bare.isalnum() and bare.isascii()
        text += ("." if text else "") + (step if plain else f'"{step}"')
    return text


def _shown(value: object) -> str:
    """Write a value as the file has it, as far as Python lets it be known."""
    text = str(value) if isinstance(value, Decimal) else repr(value)
    if isinstance(value, (bool, Decimal)):
        text = text.lower().replace("infinity", "inf")
    return text if len(text) <= 80 else f"{text[:77]}..."  # noqa: PLR2004  one line
