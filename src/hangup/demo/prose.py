"""What the model says: English, cut into tokens as a real vocabulary cuts it.

The cuts are those of cl100k_base: before a space, before most signs, and where ``|``
stands, for a rarer word is several tokens. That makes 4.5 characters a token, with the
spread of real text: from 2.7 to 5.4 in one sentence or another.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hangup.demo.seeds import draw

if TYPE_CHECKING:
    from collections.abc import Sequence

CHARACTERS_PER_TOKEN = 4.5
"""Over all the sentences below."""

_SENTENCES = """
Most teams report lower cost once a hard limit was set, and |14 of |23 kept it.
Que|ues grew because retries kept running: nobody had read the answer in the meantime.
A deadline that every sub|agent shares beats a timeout per call (|see appendix B).
Back|pressure helps, but only where id|emp|otent requests are ded|uplicated first.
In the rollout at Lind|qv|ist & Sons, p|95 latency fell from |8.|4 s to |2.|1 s.
However, throughput misled them: tokens per second rose while useful answers did not.
The counter|example is a batch workload, where cancellation merely postpon|es the spend.
Two post|mort|ems name orphan|ed websocket sessions as the lik|eli|est culprit.
Autos|caling hid the waste, since the bill was amort|ised across departments.
So the evidence is uneven: strong for interactive use, anecd|otal for offline jobs.
I would start with the budget, measure what is abandoned, and tighten it weekly.
A faster model doesn|'t fix this; it only reaches the same unread paragraph sooner.
""".strip().splitlines()
_CUT = re.compile(r"\||(?= )|(?=[.,:;?)])")
_TOKENS = [[t for t in _CUT.split(f" {line}") if t] for line in _SENTENCES]


def tokens(seed: int, count: int) -> list[str]:
    """Return ``count`` tokens of prose; the last sentence may lack its end."""
    rng = draw(seed, "text")
    said: list[str] = []
    while len(said) < count:
        said += rng.choice(_TOKENS)
    return said[:count]


def counted(texts: Sequence[str], seed: int) -> int:
    """Return how many tokens a prompt's texts are, give or take a seeded tenth."""
    rng = draw(seed, "input")
    return sum(
        round(len(text) / CHARACTERS_PER_TOKEN * rng.uniform(0.9, 1.1))
        for text in texts
    )
