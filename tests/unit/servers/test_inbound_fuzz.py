"""What strangers send: a hundred thousand headers, and none that does any harm.

Everything between the bytes of a request and the run it gets: both forms, through the
propagator and through the middleware's own reading.
"""

from __future__ import annotations

import logging
import random
import re
import time
import tracemalloc
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote, unquote_plus

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry import baggage
from opentelemetry.context import Context, attach, detach
from support.propagation import stock
from support.wire import TOKEN

from hangup import config
from hangup.config import Mode
from hangup.core import registry
from hangup.otel import wire
from hangup.otel.propagator import HangupPropagator
from hangup.servers._common_terms import Terms
from hangup.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hangup.servers._common_terms import Opening

pytestmark = pytest.mark.wide

COUNT = 100_000
MOST = 3600.0
"""The maximum that the edge accepts."""

HEADERS = (
    f't="{TOKEN}", d=1750000010000, l=60000, m="enforce"',
    f't="{TOKEN}", d=1750000010000, l=60000, m="observe", g=750',
    f't="{TOKEN}",l=86400000,m="off",x=?1;p="a,\\"b",y=1.5',
    f't="{TOKEN}", m="refuse"',
)
_SENT = f"hangup.token={TOKEN},hangup.deadline=1750000010000,hangup.left=60000"
BAGGAGES = (
    f"{_SENT},hangup.mode=enforce,user=u1",
    f"a=1;p=2, hangup.token={TOKEN} ,hangup.left=9000;q,hangup.gone=5",
    f"hangup%2Etoken={TOKEN},hangup%2Eleft=60000",
)
NUMBERS = (
    *("0", "00", "-0", "1", "-1", "-60000", "999999999999999", "9999999999999999"),
    *("1e9", "0x10", "1.5", "inf", "nan", "NaN", "٣٣", "²", "1_000", "+5", "", " 5 "),
)
PIECES = (
    *(
        ",",
        ";",
        "=",
        '"',
        "\\",
        "%",
        "%00",
        "%2C",
        "\x00",
        "\r\n",
        "\t",
        " ",
        "é",
        "💥",
    ),
    *(
        "t=",
        "l=",
        "hangup.",
        "hangup.left=",
        "hangup.token=",
        "m=",
        TOKEN,
        "(",
        ")",
        ":",
    ),
)


class Sent(NamedTuple):
    """What came with a request."""

    header: str | None
    baggage: str | None

    @property
    def fields(self) -> list[tuple[bytes, bytes]]:
        """As servers hand them on."""
        named = ((b"hangup", self.header), (b"baggage", self.baggage))
        return [
            (name, text.encode("utf-8", "surrogatepass"))
            for name, text in named
            if text is not None
        ]

    @property
    def carrier(self) -> dict[str, str]:
        return {name.decode(): text.decode("latin-1") for name, text in self.fields}

    @property
    def size(self) -> int:
        return sum(len(text) for _, text in self.fields)


def mutated(text: str, rng: random.Random) -> str:
    """Return ``text`` with something wrong with it, or several things."""
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        at = rng.randrange(len(text) + 1)
        to = min(len(text), at + rng.randrange(1, 12))
        match rng.randrange(9):
            case 0:
                text = text[:at] + text[to:]
            case 1:
                text = text[:at] + rng.choice(PIECES) + text[at:]
            case 2:
                text = text[:at] + chr(rng.randrange(256)) + text[at + 1 :]
            case 3:
                text = text[:at] + text[at:to] * rng.choice((2, 3, 40)) + text[to:]
            case 4:
                text = re.sub(r"[0-9]+", lambda _: rng.choice(NUMBERS), text, count=4)
            case 5:
                text = text[:at]
            case 6:
                text = text[:at] + quote(text[at:to], safe="") + text[to:]
            case 7:
                text = text[:at].upper() + text[at:]
            case _:
                text = text[at:] + text[:at]
    return text[:4000]


def hostile(count: int, seed: int) -> Iterator[Sent]:
    """Yield so many requests, always the same for a seed."""
    rng = random.Random(seed)  # noqa: S311  the same every time
    for _ in range(count):
        header = mutated(rng.choice(HEADERS), rng)
        entries = mutated(rng.choice(BAGGAGES), rng)
        kind = rng.randrange(4)
        yield Sent(
            None if kind == 0 else header,
            None if kind == 1 else rng.choice(BAGGAGES) if kind == 2 else entries,
        )


_NONE_LEFT = re.compile(r"(?:l|left)[ \t]*=[ \t]*0*[0-9]{1,2}(?![0-9])")


def says_none_left(sent: Sent) -> bool:
    """Whether somebody may mean that no time is left: under 100 ms."""
    texts = (sent.header or "", unquote_plus(sent.baggage or ""))
    return any(_NONE_LEFT.search(text) for text in texts)


class Edge:
    """What receives: a middleware's terms, and a propagator around a stock one."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self._terms = Terms(mode="enforce", clock=self.clock)
        self._propagator = HangupPropagator(stock(), clock=self.clock)
        self.continued = self.refused = 0

    def opening(self, sent: Sent) -> Opening | None:
        """Return the run of a request whose headers the middleware reads itself."""
        return self._terms.open("http", "POST", "/agent", "", sent.fields)

    def receives(self, sent: Sent) -> None:
        """Take it in, and assert that no harm was done."""
        opening = self.opening(sent)
        assert opening is not None
        self._harmless(opening, sent)
        token = attach(self._propagator.extract(sent.carrier, Context()))
        try:
            # Nothing of ours is left that another propagator could inject.
            assert not any(key.startswith(wire.PREFIX) for key in baggage.get_all())
            extracted = self._terms.open("http", "POST", "/agent", "", [])
        finally:
            detach(token)
        assert extracted is not None
        self._harmless(extracted, sent)
        if opening.inbound is None:
            self.refused += 1
        else:
            self.continued += 1

    def _harmless(self, opening: Opening, sent: Sent) -> None:
        run, inbound = opening.run, opening.inbound
        assert run._mode in (Mode.OBSERVE, Mode.REFUSE, Mode.ENFORCE)
        deadline = run._deadline
        assert deadline is not None
        if inbound is None:
            assert not deadline.is_set
            return
        assert re.fullmatch("[0-9a-f]{32}", inbound.token)
        left = deadline.remaining()
        assert left <= MOST
        assert left >= 0.1 or says_none_left(sent), (sent, inbound)


@pytest.fixture(autouse=True)
def _edge(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    # The stock propagator logs every entry it drops, whole.
    logger = logging.getLogger("opentelemetry.baggage.propagation")
    before, logger.disabled = logger.disabled, True
    config.use(config.with_keywords(config.Settings(), max_budget=MOST))
    yield
    config.use(None)
    logger.disabled = before
    ours = [record for record in caplog.records if record.name == "hangup"]
    # Whatever comes, how often: each thing is said once.
    assert len(ours) <= 4
    assert registry.live_runs() == ()


@pytest.mark.timeout(300)
def test_a_hundred_thousand_inbound_headers_do_no_harm() -> None:
    edge = Edge()
    for sent in hostile(COUNT, seed=7):
        edge.receives(sent)
    # Both happen a lot, or this would show nothing.
    assert edge.continued > COUNT // 20
    assert edge.refused > COUNT // 20


texts = st.text(max_size=700) | st.lists(
    st.sampled_from([*PIECES, *NUMBERS, *HEADERS, *BAGGAGES]), max_size=14
).map("".join)


@settings(max_examples=1500, deadline=None)
@given(st.none() | texts, st.none() | texts)
def test_no_header_that_can_be_made_up_does_harm(
    header: str | None, entries: str | None
) -> None:
    Edge().receives(Sent(header, entries))


def test_hostile_headers_leave_nothing_behind() -> None:
    """Thousands more, all different, and the memory is what it was."""
    edge = Edge()
    for sent in hostile(2_000, seed=11):
        edge.receives(sent)
    tracemalloc.start()
    try:
        for sent in hostile(1_000, seed=12):
            edge.receives(sent)
        before, _ = tracemalloc.get_traced_memory()
        for sent in hostile(4_000, seed=13):
            edge.receives(sent)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 64 * 1024


LONG = {
    "commas": ",",
    "semicolons": ";",
    "spaces": " ",
    "quotes": '"',
    "backslashes": '"\\',
    "members": "a=1,",
    "parameters": ";a=1",
    "our names": "hangup.",
    "our entries": f"hangup.token={TOKEN},",
    "percent signs": "%",
    "encoded": "%68angup%2Eleft=%35,",
    "numbers": "1",
    "half a header": f't="{TOKEN}", l=',
}


@pytest.mark.parametrize("unit", LONG.values(), ids=LONG)
@pytest.mark.parametrize("front", ["", HEADERS[0] + ", ", BAGGAGES[0] + ","])
def test_time_goes_with_the_length_and_no_worse_than_an_ordinary_header(
    unit: str, front: str
) -> None:
    """A ratio of times of one process: what a byte costs, hostile to ordinary."""
    edge = Edge()
    ordinary = Sent(HEADERS[0], BAGGAGES[0])

    def per_byte(sent: Sent, rounds: int) -> float:
        best = float("inf")
        for _ in range(5):
            begun = time.process_time()
            for _ in range(rounds):
                edge.opening(sent)
            best = min(best, time.process_time() - begun)
        return best / rounds / sent.size

    usual = per_byte(ordinary, 200)
    for length in (400, 4_000, 64_000):
        text = front + unit * (length // len(unit))
        assert per_byte(Sent(text, text), max(1, 4_000 // length)) < 10 * usual, length
