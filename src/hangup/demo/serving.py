"""``hangup demo --serve``: users that keep coming, and processes to be scraped.

Both arms at the same time, as a rollout has them: half of the users of each round are
observed, and the same people are enforced.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from hangup.demo.harness import processes
from hangup.demo.population import population
from hangup.demo.users import visit_all
from hangup.demo.workload import MODES, Setting

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hangup.demo.harness import Rig
    from hangup.demo.users import Visit

_KEEP: Final = 10_000
"""Calls in the model's log; nobody reads back further in a demo that goes on."""


class PortTakenError(Exception):
    """Somebody listens already where the demo was to be scraped."""


@dataclass(frozen=True)
class Round:
    """One round that is over.

    Attributes:
        number: From 1.
        visits: What its users saw, of both modes.
    """

    number: int
    visits: Sequence[Visit]

    @property
    def left(self) -> int:
        """How many walked away."""
        return sum(visit.left is not None for visit in self.visits)


async def serve_demo(  # noqa: PLR0913  keywords
    users: int,
    seed: int,
    setting: Setting,
    port: int,
    *,
    rounds: int | None = None,
    on_ready: Callable[[Rig], object] = lambda _rig: None,
    on_round: Callable[[Round], object] = lambda _round: None,
) -> None:
    """Serve until cancelled.

    Args:
        users: How many people ask in a round, in each mode.
        seed: Seeds the model and the people of the first round.
        setting: Which model, and how it behaves.
        port: Where on loopback the agent is scraped; the subagent at the next one.
        rounds: After so many it is quiet, and goes on being scraped; None is for ever.
        on_ready: Told of the processes once they are warm.
        on_round: Told of each round that is over.

    Raises:
        PortTakenError: Nobody could be scraped there.
        RuntimeError: A process did not start.
    """
    ports = (port, port + 1)
    for one in ports:
        _check(one)
    keep = _KEEP if rounds is None else None
    async with processes(seed, setting, metrics_ports=ports, keep=keep) as rig:
        await rig.until_settled("warm-up")
        on_ready(rig)
        numbers = itertools.count(1) if rounds is None else range(1, rounds + 1)
        for number in numbers:
            people = [
                replace(user, name=f"{number}.{user.name}")
                for user in population(users, seed + number - 1, setting.first_token)
            ]
            arms = [visit_all(rig.agent.url, people, mode) for mode in MODES]
            visits = itertools.chain(*await asyncio.gather(*arms))
            on_round(Round(number, list(visits)))
        await asyncio.Event().wait()


def _check(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise PortTakenError(f"port {port}: {error.strerror}") from None
