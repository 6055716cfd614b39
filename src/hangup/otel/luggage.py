"""Our entries in a baggage header, put in and taken out as text.

The propagator that is wrapped writes and reads the users' entries, and does not see
ours: they are put ahead of what it writes, and taken out of what it reads. That is
cheaper than sending ours through its context and its quoting, and it keeps them out of
every context that another propagator could inject from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote_plus

from opentelemetry.propagators.textmap import Getter, Setter

from hangup.core.guard import fault
from hangup.otel import wire

if TYPE_CHECKING:
    from collections.abc import Mapping

# The limits of the stock W3C propagator: what is over them it drops from the end.
MAX_PAIRS: Final = 180
MAX_PAIR: Final = 4096
MAX_LENGTH: Final = 8192


class Ahead(Setter[Any]):
    """Puts our entries ahead of the users' in the baggage that is set through it.

    For one injection. Where both together are over the limits, the users' last are
    dropped, as the stock propagator does.

    Args:
        setter: Sets everything.
        ours: Our entries, as text.

    Attributes:
        ours: Our entries.
        written: The baggage was set.
        pairs: How many of the users' entries went with ours.
    """

    __slots__ = ("_setter", "ours", "pairs", "written")

    def __init__(self, setter: Setter[Any], ours: str) -> None:
        self._setter = setter
        self.ours: str = ours
        self.written: bool = False
        self.pairs: int = 0

    def set(self, carrier: Any, key: str, value: str) -> None:
        """Set a header; see ``Setter.set``."""
        if key == wire.BAGGAGE or key.lower() == wire.BAGGAGE:
            try:
                value, self.pairs = behind(self.ours, value)
                self.written = True
            except Exception as error:  # noqa: BLE001  ours may fail, theirs must go out
                fault("Ahead.set", error)
        self._setter.set(carrier, key, value)


def behind(ours: str, theirs: str) -> tuple[str, int]:
    """Return both as one baggage within the limits, and how many of theirs are in it.

    Args:
        ours: Our entries; far from any limit.
        theirs: A baggage that is within the limits by itself, or "".
    """
    if not theirs:
        return ours, 0
    length = MAX_LENGTH - len(ours) - 1
    most = MAX_PAIRS - ours.count(",") - 1
    count = theirs.count(",") + 1
    if count > most or len(theirs) > length:
        kept = theirs.split(",", most)[:most]
        size = sum(map(len, kept)) + len(kept) - 1
        while kept and size > length:
            size -= len(kept.pop()) + 1
        theirs, count = ",".join(kept), len(kept)
    return (f"{ours},{theirs}" if count else ours), count


def fits(entries: Mapping[str, object], ours: str) -> bool:
    """Say whether the stock propagator would send ``entries`` and ours, all of them."""
    pairs = [
        len(quote_plus(str(key))) + 1 + len(quote_plus(str(value)))
        for key, value in entries.items()
    ]
    if len(pairs) + ours.count(",") + 1 > MAX_PAIRS:
        return False
    length = len(ours) + sum(pairs) + len(pairs)
    return max(pairs, default=0) <= MAX_PAIR and length <= MAX_LENGTH


class Past(Getter[Any]):
    """Reads headers past our entries, where they stand as we write them.

    For one extraction. Elsewhere than in front, or spelt in another way, they are read
    as the users' are, and taken out of the context afterwards.

    Args:
        getter: Gets everything.

    Attributes:
        text: The baggage as it came, None where nobody asked for it or there is none.
        length: Of what was handed on of it.
    """

    __slots__ = ("_getter", "length", "text")

    def __init__(self, getter: Getter[Any]) -> None:
        self._getter = getter
        self.text: str | None = None
        self.length: int = 0

    def get(self, carrier: Any, key: str) -> list[str] | None:
        """Get the values of a header; see ``Getter.get``."""
        lines = self._getter.get(carrier, key)
        if lines and (key == wire.BAGGAGE or key.lower() == wire.BAGGAGE):
            try:
                return self._without(lines)
            except Exception as error:  # noqa: BLE001  as in Ahead
                fault("Past.get", error)
        return lines

    def keys(self, carrier: Any) -> list[str]:
        """Get the names of all headers; see ``Getter.keys``."""
        return self._getter.keys(carrier)

    def _without(self, lines: list[str]) -> list[str]:
        if len(lines) == 1 and type(lines[0]) is str:
            self.text = text = lines[0]
            rest = wire.past_entries(text)
            self.length = len(rest)
            return lines if rest is text else [rest]
        self.text = joined(lines)
        self.length = len(self.text)
        return lines


def joined(lines: object) -> str:
    """Return what a getter gave for one header as one text."""
    if isinstance(lines, (list, tuple)):
        if len(lines) == 1 and type(lines[0]) is str:
            return lines[0]
        return ", ".join(_text(line) for line in lines)
    return _text(lines)


def _text(value: object) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)
